package token

import (
	"strings"
	"testing"

	"example.com/oncepay/internal/apperr"
)

// B23, B27: the strings in Redis are fixed; instances of two builds must mean the same token.
func TestRedisKeyIsPinned(t *testing.T) {
	for _, c := range []struct {
		user        int64
		value, want string
	}{
		{1001, "0123456789abcdef0123456789abcdef", "oncepay:token:{order.create:1001:0123456789abcdef0123456789abcdef}"},
		{1, "23_4", "oncepay:token:{order.create:1:23_4}"},
		{123, "-4", "oncepay:token:{order.create:123:-4}"},
	} {
		if got, err := redisKey(SceneOrderCreate, c.user, c.value); got != c.want || err != nil {
			t.Errorf("redisKey(%d, %q) = %q, %v, want %q", c.user, c.value, got, err, c.want)
		}
	}
}

// B21, B23: what could run into another part or be folded is refused.
func TestValueAlphabet(t *testing.T) {
	for _, value := range []string{"a", "Z", "0", "_", "-", strings.Repeat("x", 64)} {
		if err := ValidValue(value); err != nil {
			t.Errorf("%q: %v", value, err)
		}
	}
	for _, value := range []string{"", strings.Repeat("x", 65), "a:b", "{a}", "a}", "a b", " a", "a ", "a\n", "café", "ß", "Ａ", "a\x00", "a/b", "a.b"} {
		err := ValidValue(value)
		if e, ok := apperr.As(err); !ok || e.Kind != apperr.Invalid || e.Code != "submit_token_invalid" {
			t.Errorf("%q: got %v, want submit_token_invalid", value, err)
		}
		if _, err := redisKey(SceneOrderCreate, 1, value); err == nil {
			t.Errorf("%q has a Redis key", value)
		}
	}
}

func TestSceneIsFromAFixedSet(t *testing.T) {
	for _, scene := range []string{"", "order.create:1", "ORDER.CREATE", "order.create "} {
		if err := ValidScene(scene); !apperr.Is(err, "scene_unknown") {
			t.Errorf("%q: got %v, want scene_unknown", scene, err)
		}
	}
	if err := ValidScene(SceneOrderCreate); err != nil {
		t.Error(err)
	}
}

// B23: different tuples are different tokens.
func FuzzRedisKeyIsInjective(f *testing.F) {
	f.Add(int64(1), "23_4", int64(123), "_4")
	f.Add(int64(1), "a", int64(1), "A")
	f.Add(int64(1), "-1", int64(-1), "1")
	f.Fuzz(func(t *testing.T, userA int64, valueA string, userB int64, valueB string) {
		a, errA := redisKey(SceneOrderCreate, userA, valueA)
		b, errB := redisKey(SceneOrderCreate, userB, valueB)
		if errA != nil || errB != nil {
			return // refused
		}
		if same := userA == userB && valueA == valueB; same != (a == b) {
			t.Errorf("(%d, %q) is %q, (%d, %q) is %q", userA, valueA, a, userB, valueB, b)
		}
	})
}
