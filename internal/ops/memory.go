package ops

import (
	"bytes"
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// memory is a response that stays in this process.
type memory struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (m *memory) Header() http.Header         { return m.header }
func (m *memory) WriteHeader(status int)      { m.status = status }
func (m *memory) Write(b []byte) (int, error) { return m.body.Write(b) }

// withoutRoute hides chi's route from a context.
type withoutRoute struct{ context.Context }

func (c withoutRoute) Value(key any) any {
	if key == chi.RouteCtxKey {
		return nil
	}
	return c.Context.Value(key)
}
