package main

import (
	"net/http"
	"testing"
)

// The first thing anybody tries: the same request a hundred times at once, on two instances.
func TestHundredRepeatsOfOneRequestMakeOneOrder(t *testing.T) {
	s := newStack(t)
	s.sku(1, 1999, 1000)
	token := s.token(1001)
	replies := s.all(100, func(i int) call { return create(i, 1001, 1, key("once"), token) })
	for _, r := range replies {
		if r.status != http.StatusCreated || string(r.body) != string(replies[0].body) {
			t.Errorf("got %v, want 201 and the bytes of the first answer", r)
		}
	}
	if orders := distinct(replies, "order_no"); len(orders) != 1 {
		t.Errorf("orders named in the answers: %v, want one", orders)
	}
	s.wantRows(1)
	s.wantSound()
}
