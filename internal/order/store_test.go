package order

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/web"
)

// An order_no that is taken says nothing about the action: the loser gets another number, not the other's order.
func TestAClashOfNumbersIsNotTakenForARepeat(t *testing.T) {
	f := newFixture(t)
	first := f.order("K1")
	numbers := []string{first, first, strings.Repeat("f", 32)}
	f.NewOrderNo = func() (string, error) {
		n := numbers[0]
		numbers = numbers[1:]
		return n, nil
	}
	a, err := f.Create(t.Context(), input(1002, "K2"))
	if err != nil || a.Status != 201 || a.Location != "/v1/orders/"+strings.Repeat("f", 32) || a.Replay != web.FirstRun || len(numbers) != 0 {
		t.Errorf("%+v %s, %v, numbers left %v", a, a.Body, err, numbers)
	}
	f.wantOrder(first, Init, 1)
	f.wantOrder(strings.Repeat("f", 32), Init, 1)
	f.wantStock(96, 4, 0)
}

func TestNumbersThatOnlyClashAreUnavailable(t *testing.T) {
	f := newFixture(t)
	first := f.order("K1")
	f.NewOrderNo = func() (string, error) { return first, nil }
	if a, err := f.Create(t.Context(), input(1002, "K2")); !errors.Is(err, mysqldb.ErrStale) || !mysqldb.Unavailable(err) {
		t.Errorf("%+v, %v", a, err)
	}
	if n := f.count("SELECT COUNT(*) FROM t_idempotency_key WHERE caller_id = 1002"); n != 0 {
		t.Errorf("the key is used up: %d records", n)
	}
	broken := errors.New("no entropy")
	f.NewOrderNo = func() (string, error) { return "", broken }
	if _, err := f.Create(t.Context(), input(1002, "K2")); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	f.wantStock(98, 2, 0)
}

func TestAnOrderComesBackAsItWasWritten(t *testing.T) {
	f := newFixture(t)
	want := Order{
		OrderNo: orderNo, UserID: math.MaxInt64, SKUID: 1, ActivityID: "spring", Attempt: 3, BizToken: "o1:x", Status: Init, Version: 1,
		Quantity: math.MaxInt32, Amount: math.MaxInt64, Discount: 7, CouponNo: "c1", Currency: "JPY",
		ExpiresAt: now().Add(time.Microsecond), CreatedAt: now(),
	}
	if err := f.DB.InTx(t.Context(), func(tx *sql.Tx) error { return insert(t.Context(), tx, want) }); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func() (*Order, error){
		"number":    func() (*Order, error) { return Get(t.Context(), f.DB, orderNo) },
		"biz_token": func() (*Order, error) { return byBizToken(t.Context(), f.DB, "o1:x") },
		"activity": func() (*Order, error) {
			return lastInActivity(t.Context(), f.DB, CreateInput{UserID: math.MaxInt64, SKUID: 1, ActivityID: "spring"})
		},
	} {
		got, err := read()
		if err != nil || got == nil {
			t.Fatalf("%s: %v, %v", name, got, err)
		}
		want.ID = got.ID
		if *got != want {
			t.Errorf("%s: got %+v\nwant %+v", name, *got, want)
		}
	}
	for name, read := range map[string]func() (*Order, error){
		"number":    func() (*Order, error) { return Get(t.Context(), f.DB, strings.ToUpper(orderNo)) }, // B21
		"biz_token": func() (*Order, error) { return byBizToken(t.Context(), f.DB, "O1:X") },
		"activity": func() (*Order, error) {
			return lastInActivity(t.Context(), f.DB, CreateInput{UserID: math.MaxInt64, SKUID: 1, ActivityID: "Spring"})
		},
	} {
		if got, err := read(); got != nil || err != nil {
			t.Errorf("%s: %+v, %v; want none", name, got, err)
		}
	}
}

// B48: nothing is bent to fit, and no error of the database is taken for a repeat.
func TestARowThatDoesNotFitIsRefused(t *testing.T) {
	f := newFixture(t)
	good := Order{OrderNo: orderNo, UserID: 1, SKUID: 1, Attempt: 1, BizToken: "o1:x", Version: 1, Quantity: 1, Amount: 1, Currency: "CNY", ExpiresAt: now(), CreatedAt: now()}
	for name, change := range map[string]func(*Order){
		"biz_token too long":    func(o *Order) { o.BizToken = strings.Repeat("x", 65) },
		"biz_token not ASCII":   func(o *Order) { o.BizToken = "é" },
		"order_no too long":     func(o *Order) { o.OrderNo += "0" },
		"activity_id too long":  func(o *Order) { o.ActivityID = strings.Repeat("x", 65) },
		"currency too long":     func(o *Order) { o.Currency = "EURO" },
		"quantity 0":            func(o *Order) { o.Quantity = 0 },
		"amount negative":       func(o *Order) { o.Amount = -1 },
		"discount negative":     func(o *Order) { o.Discount = -1 },
		"attempt above the int": func(o *Order) { o.Attempt = math.MaxInt32 + 1 },
		"no expiry":             func(o *Order) { o.ExpiresAt = time.Time{} },
	} {
		o := good
		change(&o)
		err := f.DB.InTx(t.Context(), func(tx *sql.Tx) error { return insert(t.Context(), tx, o) })
		if err == nil || mysqldb.IsDuplicate(err, "uk_biz_token") || mysqldb.Unavailable(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := f.count("SELECT COUNT(*) FROM t_order"); n != 0 {
		t.Errorf("%d orders", n)
	}
	// A duplicate is one of its own index (B45).
	if err := f.DB.InTx(t.Context(), func(tx *sql.Tx) error { return insert(t.Context(), tx, good) }); err != nil {
		t.Fatal(err)
	}
	again := good
	again.OrderNo = strings.Repeat("e", 32)
	err := f.DB.InTx(t.Context(), func(tx *sql.Tx) error { return insert(t.Context(), tx, again) })
	if !mysqldb.IsDuplicate(err, "uk_biz_token") {
		t.Errorf("the same action: %v", err)
	}
}

func TestListsAreNewestFirstAndOnesOwn(t *testing.T) {
	f := newFixture(t)
	for i := range 5 {
		if _, err := f.Create(t.Context(), input(int64(1001+i%2), fmt.Sprint("K", i))); err != nil {
			t.Fatal(err)
		}
	}
	ids := func(user int64, page web.Page) (got []int64) {
		orders, err := list(t.Context(), f.DB, user, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range orders {
			if user != 0 && o.UserID != user {
				t.Errorf("user %d sees an order of %d", user, o.UserID)
			}
			got = append(got, o.ID)
		}
		return got
	}
	for _, c := range []struct {
		user int64
		page web.Page
		want []int64
	}{
		{0, web.Page{Limit: 100}, []int64{5, 4, 3, 2, 1}},
		{1001, web.Page{Limit: 100}, []int64{5, 3, 1}},
		{1001, web.Page{Limit: 1}, []int64{5, 3}}, // one more than the page holds
		{1001, web.Page{Limit: 1, Before: 3}, []int64{1}},
		{0, web.Page{Limit: 2, Before: 4}, []int64{3, 2, 1}},
		{1003, web.Page{Limit: 100}, nil},
	} {
		if got := ids(c.user, c.page); !slices.Equal(got, c.want) {
			t.Errorf("user %d, %+v: %v, want %v", c.user, c.page, got, c.want)
		}
	}
}

// B79: an amount beyond int64 is refused, not wrapped around; an order over nothing is paid by its own creation.
func TestAmountsAtTheEdges(t *testing.T) {
	f := newFixture(t)
	f.sku(2, math.MaxInt64)
	f.sku(3, 0)
	in := input(1001, "K1")
	in.SKUID = 2
	if a, err := f.Create(t.Context(), in); !apperr.Is(err, "amount_out_of_range") {
		t.Errorf("%+v, %v", a, err)
	}
	in.Quantity = 1
	if a, err := f.Create(t.Context(), in); err != nil || !strings.Contains(string(a.Body), `"amount":9223372036854775807`) {
		t.Errorf("%s, %v", a.Body, err)
	}
	free := input(1001, "K2")
	free.SKUID = 3
	a, err := f.Create(t.Context(), free)
	if err != nil || !strings.Contains(string(a.Body), `"status":"PAID"`) {
		t.Fatalf("%s, %v", a.Body, err)
	}
	f.wantOrder(strings.TrimPrefix(a.Location, "/v1/orders/"), Paid, 2)
	if again, err := f.Create(t.Context(), free); err != nil || string(again.Body) != string(a.Body) || again.Replay != web.Replayed {
		t.Errorf("%s, %v", again.Body, err)
	}
}
