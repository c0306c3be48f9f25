package order

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/idemkey"
)

const orderNo = "0197c0de0000700080000000000000ff"

func inActivity(user, sku int64, activity string) CreateInput {
	return CreateInput{UserID: user, SKUID: sku, Quantity: 1, ActivityID: activity, Token: "t", Key: idemkey.Key{Caller: user, Value: "k"}}
}

func outside(user int64, token, key string) CreateInput {
	return CreateInput{UserID: user, SKUID: 7, Quantity: 1, Token: token, Key: idemkey.Key{Caller: user, Value: key}}
}

// B27: these values stand in databases and in Redis. If one changes, its prefix needs a new version, and rows a migration.
func TestBusinessKeysNeverChange(t *testing.T) {
	activity, token, key := inActivity(1001, 7, "spring"), outside(1001, "0123abcd", "K1-0123456789-abcdef"), outside(1001, "", "K1:0123456789-abcdef")
	long := outside(math.MaxInt64, strings.Repeat("t", 64), strings.Repeat("k", 255))
	for _, c := range []struct{ got, want string }{
		{activity.bizToken(1), "o1:a:1001:7:spring:1"},
		{activity.bizToken(12), "o1:a:1001:7:spring:12"},
		{activity.lockKey(), "o1:a:1001:7:spring"},
		{token.bizToken(1), "o1:t:1001:0123abcd"},
		{token.lockKey(), "o1:t:1001:0123abcd"},
		{key.bizToken(1), "o1:k:1001:K1~3a0123456789-abcdef"},
		{key.lockKey(), "o1:k:1001:K1~3a0123456789-abcdef"},
		{token.claimOwner(), "c1:1001:K1-0123456789-abcdef"},
		{long.bizToken(1), "o1:t:~h_BF8dE4fv1HBl3_UgQAB3qIOfKNkuIvWXHrQjklkv7s"},
		{long.claimOwner(), "c1:~hDgdn3nQscPsaAoYcbnzHQR-thfm-gG-ynSxFrK7sjZc"},
		{stockCause(orderNo), "o1:0197c0de0000700080000000000000ff"},
		{messageID(orderNo, 3), "m1:o:0197c0de0000700080000000000000ff:3"},
		{causeCreate + causeCancel + causeShip + causeFinish + causeFree, "createcancelshipfinishfree"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// The lock is as wide as the action: the attempt, which is known only inside, does not matter; all else does.
func TestTheLockCoversTheActionAndNoMore(t *testing.T) {
	a := inActivity(1, 7, "spring")
	again := a
	again.Token, again.Key.Value, again.Quantity = "other", "other", 9
	if a.lockKey() != again.lockKey() {
		t.Error("one action has two locks")
	}
	seen := make(map[string]CreateInput)
	for _, in := range []CreateInput{
		a, inActivity(2, 7, "spring"), inActivity(1, 8, "spring"), inActivity(1, 7, "Spring"), inActivity(1, 7, "spring-1"),
		outside(1, "t", "k"), outside(2, "t", "k"), outside(1, "T", "k"), outside(1, "", "k"), outside(1, "", "K"), outside(1, "", "t"),
	} {
		if other, ok := seen[in.lockKey()]; ok {
			t.Errorf("%+v and %+v have one lock", in, other)
		}
		seen[in.lockKey()] = in
	}
}

// B23: parts that could run into each other do not.
func FuzzDifferentActionsHaveDifferentKeys(f *testing.F) {
	f.Add(int64(1), int64(234), "4", int64(12), int64(34), "4")
	f.Add(int64(1), int64(23), "4_1", int64(1), int64(2), "34_1")
	f.Add(int64(1), int64(2), "a:1", int64(1), int64(2), "a")
	f.Add(int64(1), int64(2), "{}", int64(1), int64(2), "~7b~7d")
	f.Add(int64(1), int64(2), "~", int64(1), int64(2), ":")
	f.Fuzz(func(t *testing.T, u1, s1 int64, a1 string, u2, s2 int64, a2 string) {
		if a1 == "" || a2 == "" {
			return // outside an activity; the SKU is no part of the action then
		}
		x, y := inActivity(u1, s1, a1), inActivity(u2, s2, a2)
		if same := u1 == u2 && s1 == s2 && a1 == a2; (x.bizToken(1) == y.bizToken(1)) != same || (x.lockKey() == y.lockKey()) != same {
			t.Errorf("%+v: %s; %+v: %s", x, x.bizToken(1), y, y.bizToken(1))
		}
		if x.bizToken(1) == x.bizToken(11) || x.bizToken(1) == outside(u1, a1, a2).bizToken(1) || outside(u1, a1, "k").bizToken(1) == outside(u1, "", a1).bizToken(1) {
			t.Errorf("attempts or kinds of action run into each other: %s", x.bizToken(1))
		}
		tx, ty := outside(u1, "", a1), outside(u2, "", a2)
		if same := u1 == u2 && a1 == a2; (tx.bizToken(1) == ty.bizToken(1)) != same || (tx.claimOwner() == ty.claimOwner()) != same {
			t.Errorf("%s and %s", tx.bizToken(1), ty.bizToken(1))
		}
	})
}

// B14: every key with parts of maximal length fits its column, and two that differ in their last character stay two.
func TestTheLongestKeysFitTheirColumns(t *testing.T) {
	f := newFixture(t)
	last := func(n int) [2]string {
		return [2]string{strings.Repeat("x", n-1) + "a", strings.Repeat("x", n-1) + "b"}
	}
	for name, pair := range map[string][2]string{
		"t_order.biz_token":           {inActivity(math.MaxInt64, math.MaxInt64, last(64)[0]).bizToken(math.MaxInt32), inActivity(math.MaxInt64, math.MaxInt64, last(64)[1]).bizToken(math.MaxInt32)},
		"t_order.biz_token ":          {outside(math.MaxInt64, last(64)[0], "").bizToken(1), outside(math.MaxInt64, last(64)[1], "").bizToken(1)},
		"t_order.biz_token  ":         {outside(math.MaxInt64, "", last(255)[0]).bizToken(1), outside(math.MaxInt64, "", last(255)[1]).bizToken(1)},
		"t_order.order_no":            {last(numberLength)[0], last(numberLength)[1]},
		"t_order.activity_id":         last(64),
		"t_stock_movement.cause":      {stockCause(last(numberLength)[0]), stockCause(last(numberLength)[1])},
		"t_order_history.order_no":    {last(numberLength)[0], last(numberLength)[1]},
		"t_order_history.actor":       {auth.Caller{UserID: math.MaxInt64}.Actor(), auth.Caller{UserID: math.MaxInt64, Ops: true}.Actor()},
		"t_outbox.msg_id":             {messageID(last(numberLength)[0], math.MaxInt32), messageID(last(numberLength)[1], math.MaxInt32)},
		"t_outbox.partition_key":      {last(numberLength)[0], last(numberLength)[1]},
		"t_outbox.topic":              {"order.refunding", "order.cancelled"},
		"t_idempotency_key.operation": {opCreate, "order.finish"},
		"t_idempotency_key.idem_key":  last(255),
		"t_idempotency_key.location":  {"/v1/orders/" + last(numberLength)[0], "/v1/orders/" + last(numberLength)[1]},
	} {
		table, column, _ := strings.Cut(strings.TrimSpace(name), ".")
		width := f.count(`SELECT character_maximum_length FROM information_schema.columns
			WHERE table_schema = DATABASE() AND table_name = ? AND column_name = ?`, table, column)
		if pair[0] == pair[1] || len(pair[0]) > width || len(pair[1]) > width {
			t.Errorf("%s is %d wide: %q and %q", name, width, pair[0], pair[1])
		}
	}
	if limit := f.count(`SELECT character_maximum_length FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 't_order' AND column_name = 'biz_token'`); limit != bizkey.MaxLength {
		t.Errorf("bizkey builds up to %d bytes, the column holds %s", bizkey.MaxLength, strconv.Itoa(limit))
	}
}
