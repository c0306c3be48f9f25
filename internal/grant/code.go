package grant

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base32"
	"fmt"
	"net/http"
	"time"

	"example.com/oncepay/internal/audit"
	"example.com/oncepay/internal/auth"
	"example.com/oncepay/internal/idemkey"
	"example.com/oncepay/internal/web"
)

// Code is what a person types in to get a coupon in a campaign outside the service.
type Code struct {
	Code      string    `json:"code"`
	Template  string    `json:"template"`
	CreatedAt time.Time `json:"created_at"`
}

const opCode = "coupon_code.create"

// MakeCode makes a code: 201. Two requests for one template are two codes by nature; only the Idempotency-Key tells a retry from a
// new request, so the route demands it (S0 §9.4), and past the key's retention the same request makes a new code.
func (s *Service) MakeCode(ctx context.Context, by auth.Caller, template string, key idemkey.Key) (web.Answer, error) {
	return s.Keys.Once(ctx, key, func(tx *sql.Tx) (web.Answer, error) {
		c := Code{Code: s.NewCode(), Template: template, CreatedAt: s.Now()}
		id, err := insertCode(ctx, tx, c, by.UserID)
		if err != nil {
			return web.Answer{}, err
		}
		// By its id: a code is worth money to whoever reads it.
		if err := audit.Write(ctx, tx, by, opCode, fmt.Sprintf("coupon_code:%d", id), "template "+template, c.CreatedAt); err != nil {
			return web.Answer{}, err
		}
		return web.JSON(http.StatusCreated, c)
	})
}

// crockford is Crockford's base 32: no I, L, O and U, which people misread.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// codeBytes gives 16 characters without padding: 80 bits, which nobody guesses.
const codeBytes = 10

// NewCode returns a random code.
func NewCode() string {
	b := make([]byte, codeBytes)
	rand.Read(b) // never fails (crypto/rand)
	return base32.NewEncoding(crockford).EncodeToString(b)
}
