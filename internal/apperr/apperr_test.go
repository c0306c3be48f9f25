package apperr

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
)

func TestAnUnclassifiedErrorIsAFaultOfOurs(t *testing.T) {
	if (&Error{}).Kind != Internal {
		t.Error("the zero Kind is not Internal")
	}
}

func TestKindAndCodeAreFoundThroughWrapping(t *testing.T) {
	err := fmt.Errorf("create order: %w", errors.Join(io.EOF, New(Conflict, "out_of_stock", "There is not enough of SKU %d left.", 7)))
	e, ok := As(err)
	if !ok || e.Kind != Conflict || e.Detail != "There is not enough of SKU 7 left." {
		t.Errorf("As gives %+v, %v", e, ok)
	}
	if !Is(err, "out_of_stock") || Is(err, "token_spent") || Is(io.EOF, "") {
		t.Error("Is does not go by the code alone")
	}
}

func TestTheCauseIsForTheLogAndStaysInTheChain(t *testing.T) {
	err := New(Unavailable, "unavailable", "Try again.").Wrap(io.ErrUnexpectedEOF)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error("the cause is lost")
	}
	if err.Detail != "Try again." || err.Error() != "unavailable: Try again.: unexpected EOF" {
		t.Errorf("detail %q, text %q", err.Detail, err)
	}
}

func TestWhatIsSaidOfAnErrorIsKept(t *testing.T) {
	e := New(Conflict, "order_differs", "no").At(LayerUniqueIndex).After(3*time.Second).With("order_no", "1").With("n", 2)
	if e.Layer != LayerUniqueIndex || e.RetryAfter != 3*time.Second || e.Extra["order_no"] != "1" || e.Extra["n"] != 2 {
		t.Errorf("%+v", e)
	}
}

func TestOnlyWhatMayChangeByItselfIsRetryable(t *testing.T) {
	for kind, want := range map[Kind]bool{
		Internal: true, InProgress: true, RateLimited: true, Unavailable: true,
		Invalid: false, Unauthenticated: false, Forbidden: false, NotFound: false, Conflict: false, KeyReused: false,
		TooLarge: false, UnsupportedMedia: false, MethodNotAllowed: false,
	} {
		if got := New(kind, "x", "x").Retryable(); got != want {
			t.Errorf("kind %d: retryable %v, want %v", kind, got, want)
		}
	}
}
