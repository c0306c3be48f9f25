// Package notify tells an endpoint outside of messages, as Standard Webhooks (https://www.standardwebhooks.com).
//
// Promise: a message is sent under its own id, in webhook-id and Idempotency-Key, however often it is sent; the receiver makes one
// effect of it. An error leaves open whether the receiver has had it. No error shows the secret or the URL, which may hold one.
package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/oncepay/internal/outbox"
)

// Timeout is one call, answer and all. A receiver should take the message in and work on it afterwards, which is well under that.
const Timeout = 5 * time.Second

// maxDrain is how much of an answer is read so that its connection can be used again; a longer one costs a new connection.
const maxDrain = 4 << 10

// secretPrefix marks a Standard Webhooks secret; base64 follows.
const secretPrefix = "whsec_"

// Client calls one endpoint.
type Client struct {
	URL    string
	Secret string // whsec_<base64>
	HTTP   *http.Client
	Now    func() time.Time
}

// event is the body of a call.
type event struct {
	ID        string         `json:"id"`
	Type      string         `json:"type"`
	CreatedAt time.Time      `json:"created_at"`
	Data      jsontext.Value `json:"data"`
}

// Call sends a message. nil: the endpoint has answered 2xx. A redirect is no success and is not followed: it would carry the
// message to a place nobody configured.
func (c *Client) Call(ctx context.Context, m outbox.Stored) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	req, err := c.request(ctx, m)
	if err != nil {
		return fmt.Errorf("notify: %w", withoutURL(err))
	}
	client := *c.HTTP
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("notify: %w", withoutURL(err))
	}
	defer resp.Body.Close()
	io.CopyN(io.Discard, resp.Body, maxDrain) // the status has decided
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("notify: the endpoint answered %d", resp.StatusCode)
	}
	return nil
}

func (c *Client) request(ctx context.Context, m outbox.Stored) (*http.Request, error) {
	body, err := json.Marshal(event{ID: m.ID, Type: m.Topic, CreatedAt: m.CreatedAt.UTC(), Data: m.Payload})
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	timestamp := strconv.FormatInt(c.Now().Unix(), 10)
	signature, err := sign(c.Secret, m.ID, timestamp, body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", m.ID)
	req.Header.Set("webhook-id", m.ID)
	req.Header.Set("webhook-timestamp", timestamp)
	req.Header.Set("webhook-signature", signature)
	return req, nil
}

// sign returns "v1," and the base64 HMAC-SHA256 of "<id>.<timestamp>.<body>" under the secret's bytes.
func sign(secret, id, timestamp string, body []byte) (string, error) {
	encoded, ok := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(key) == 0 {
		return "", errors.New("the secret is not " + secretPrefix + " and base64") // the cause would quote it
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)), nil
}

// withoutURL takes the URL out of net/http's error.
func withoutURL(err error) error {
	var withURL *url.Error
	if errors.As(err, &withURL) {
		return withURL.Err
	}
	return err
}
