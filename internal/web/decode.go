package web

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/oncepay/internal/apperr"
)

// MaxBody is the limit of a request body: a hundred times our largest honest one.
const MaxBody = 64 << 10

// PathParam reads a part of the path, unescaped: chi hands out the raw form when the path was sent with one, and clients escape
// what need not be.
func PathParam(r *http.Request, name string) string {
	raw := chi.URLParam(r, name)
	if value, err := url.PathUnescape(raw); err == nil && r.URL.RawPath != "" {
		return value
	}
	return raw
}

// PathID reads the {id} of a path.
func PathID(r *http.Request) (int64, error) {
	id, err := strconv.ParseInt(PathParam(r, "id"), 10, 64)
	if err != nil || id < 1 {
		return 0, apperr.New(apperr.Invalid, "id_invalid", "An id is a positive whole number.")
	}
	return id, nil
}

// ReadBody reads the whole body, refusing one that is over MaxBody (413) or that breaks off (400).
func ReadBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, apperr.New(apperr.TooLarge, "body_too_large", "The body is larger than %d bytes.", MaxBody)
	case err != nil:
		return nil, apperr.New(apperr.Invalid, "body_incomplete", "The body broke off before its end.").Wrap(err)
	}
	return body, nil
}

// DecodeJSON reads the body once and decodes it strictly into v: names match exactly, no unknown, repeated or
// case-differing field, no trailing data, valid UTF-8. It returns the bytes, over which the fingerprint is made, so that
// what is compared and what is read are the same.
func DecodeJSON(r *http.Request, v any) ([]byte, error) {
	if err := wantJSON(r); err != nil {
		return nil, err
	}
	body, err := ReadBody(r)
	if err != nil {
		return nil, err
	}
	return body, decode(body, v)
}

// DecodeOptional is DecodeJSON for an action that can do without a body: an empty one leaves v as it is.
func DecodeOptional(r *http.Request, v any) ([]byte, error) {
	body, err := ReadBody(r)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return nil, err
	}
	if err := wantJSON(r); err != nil {
		return nil, err
	}
	return body, decode(body, v)
}

func decode(body []byte, v any) error {
	if err := UnmarshalStrict(body, v); err != nil {
		return apperr.New(apperr.Invalid, "body_invalid", "%s", explain(err)).Wrap(err)
	}
	return nil
}

// NoBody refuses a request whose action takes no body but which has one, and returns the (empty) bytes.
// A literal {} is let through, as clients that always send JSON do.
func NoBody(r *http.Request) ([]byte, error) {
	body, err := ReadBody(r)
	if err != nil {
		return nil, err
	}
	if len(strings.TrimSpace(string(body))) == 0 {
		return nil, nil
	}
	if err := wantJSON(r); err != nil {
		return nil, err
	}
	if err := UnmarshalStrict(body, &struct{}{}); err != nil {
		return nil, apperr.New(apperr.Invalid, "body_invalid", "This action takes no body: %s", explain(err)).Wrap(err)
	}
	return body, nil
}

// errNull: null would leave every field at its zero value, as if {} had been sent.
var errNull = errors.New("null is not an object")

// UnmarshalStrict decodes one JSON document, which is not null. See DecodeJSON for what it refuses; all of it but unknown
// fields is the default of encoding/json's successor, which is why that library is used.
func UnmarshalStrict(body []byte, v any) error {
	if jsontext.Value(body).Kind() == 'n' {
		return errNull
	}
	return json.Unmarshal(body, v, json.RejectUnknownMembers(true))
}

// wantJSON accepts application/json in UTF-8. A request without Content-Type is taken at its body's word.
func wantJSON(r *http.Request) error {
	header := r.Header.Get("Content-Type")
	if header == "" {
		return nil
	}
	mediaType, params, err := mime.ParseMediaType(header)
	charset, declared := params["charset"]
	if err != nil || mediaType != "application/json" || (declared && !strings.EqualFold(charset, "utf-8")) {
		return apperr.New(apperr.UnsupportedMedia, "unsupported_media_type", "Send application/json in UTF-8; got %q.", header)
	}
	return nil
}

// explain turns a decoder's error into a sentence that names the place and shows no Go types.
func explain(err error) string {
	var syntactic *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &syntactic) && errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Sprintf("The field at %q stands there twice.", syntactic.JSONPointer)
	case errors.As(err, &syntactic):
		return fmt.Sprintf("The body is not one JSON document: error at byte %d.", syntactic.ByteOffset)
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return fmt.Sprintf("The field %q is not known here.", semantic.JSONPointer)
	case errors.As(err, &semantic) && semantic.JSONPointer != "":
		return fmt.Sprintf("The field %q has the wrong type or is out of range.", semantic.JSONPointer)
	default:
		return "The body must be one JSON object."
	}
}
