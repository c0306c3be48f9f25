package mockpay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// HeaderSignature carries a notice's signature.
const HeaderSignature = "Mockpay-Signature"

// Sign returns one v1 value: the hex HMAC-SHA256 of "<unix seconds of t>.<body>".
func Sign(secret string, t time.Time, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(strconv.AppendInt(nil, t.Unix(), 10))
	mac.Write([]byte{'.'})
	mac.Write(body)
	return hex.EncodeToString(mac.Sum(nil))
}

// SignatureHeader returns the value of HeaderSignature: "t=<unix seconds>" and one "v1=" for each secret, so that a
// receiver that knows any of them accepts the notice while a secret rotates.
func SignatureHeader(secrets []string, t time.Time, body []byte) string {
	var b strings.Builder
	b.WriteString("t=" + strconv.FormatInt(t.Unix(), 10))
	for _, secret := range secrets {
		b.WriteString(",v1=" + Sign(secret, t, body))
	}
	return b.String()
}
