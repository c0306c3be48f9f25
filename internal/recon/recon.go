// Package recon is the oracle: it states what must always hold in the data and finds what does not. Tests ask it after
// every run, and operators through GET /v1/ops/invariants. It reads any table and writes none.
package recon

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/oncepay/internal/mysqldb"
	"example.com/oncepay/internal/order"
	"example.com/oncepay/internal/outbox"
	"example.com/oncepay/internal/web"
)

// Violation is one thing that must not be.
type Violation struct {
	Invariant string `json:"invariant"` // its name
	Subject   string `json:"subject"`   // the order, SKU or key it concerns
	Detail    string `json:"detail"`
}

// Checker runs the invariants.
type Checker struct {
	DB    *mysqldb.DB
	Redis redis.UniversalClient
	Now   func() time.Time
}

// maxRows bounds what one invariant reports: a hundred rows show a pattern, a million hide it.
const maxRows = 100

// invariant is a query whose every row is a violation: the subject, then what is wrong.
type invariant struct {
	name  string
	query string
	args  []any
}

// invariants lists those that one SELECT can decide. Each is one statement, so that it sees one moment of the data.
func (c *Checker) invariants() []invariant {
	paid, cancelled := int(order.Paid), int(order.Cancelled)
	return slices.Concat(moneyInvariants(), messageInvariants(c.Now()), grantInvariants(), []invariant{
		{"one_order_per_biz_token", `
			SELECT biz_token, CONCAT(COUNT(*), ' orders') FROM t_order GROUP BY biz_token HAVING COUNT(*) > 1`, nil},
		{"stock_adds_up", `
			SELECT sku_id, CONCAT(available, ' available + ', reserved, ' reserved + ', sold, ' sold is not ', initial, ' initial')
			FROM t_sku WHERE available + reserved + sold <> initial OR available < 0 OR reserved < 0 OR sold < 0`, nil},
		{"stock_is_the_sum_of_its_movements", `
			SELECT s.sku_id, CONCAT('movements say ', COALESCE(m.available, 0), '/', COALESCE(m.reserved, 0), '/', COALESCE(m.sold, 0),
				', the SKU says ', s.available, '/', s.reserved, '/', s.sold)
			FROM t_sku s LEFT JOIN (
				SELECT sku_id, SUM(available) AS available, SUM(reserved) AS reserved, SUM(sold) AS sold FROM t_stock_movement GROUP BY sku_id
			) m ON m.sku_id = s.sku_id
			WHERE s.available <> COALESCE(m.available, 0) OR s.reserved <> COALESCE(m.reserved, 0) OR s.sold <> COALESCE(m.sold, 0)`, nil},
		{"every_order_holds_its_goods_once", `
			SELECT o.order_no, CONCAT(COUNT(m.id), ' reservations of ', COALESCE(SUM(m.reserved), 0), ' units for a quantity of ', MAX(o.quantity))
			FROM t_order o LEFT JOIN t_stock_movement m ON m.cause = CONCAT('o1:', o.order_no) AND m.kind = 'reserve'
			GROUP BY o.order_no HAVING COUNT(m.id) <> 1 OR SUM(m.reserved) <> MAX(o.quantity)`, nil},
		{"goods_follow_the_order", `
			SELECT o.order_no, CONCAT('history has ', h.n, ' moves to ', h.to_status, ', stock has ', COUNT(m.id), ' ', h.kind, ' movements')
			FROM t_order o
			JOIN (SELECT x.to_status, x.kind, y.order_no, SUM(CASE WHEN z.from_status = 0 AND z.to_status = x.to_status THEN 1 ELSE 0 END) AS n
				FROM (SELECT ? AS to_status, 'confirm' AS kind UNION ALL SELECT ?, 'release') x
				CROSS JOIN t_order y LEFT JOIN t_order_history z ON z.order_no = y.order_no
				GROUP BY x.to_status, x.kind, y.order_no) h ON h.order_no = o.order_no
			LEFT JOIN t_stock_movement m ON m.cause = CONCAT('o1:', o.order_no) AND m.kind = h.kind
			GROUP BY o.order_no, h.to_status, h.kind, h.n HAVING COUNT(m.id) <> h.n`, []any{paid, cancelled}},
		{"version_counts_the_history", `
			SELECT o.order_no, CONCAT('version ', MAX(o.version), ', ', COUNT(h.id), ' rows up to ', COALESCE(MAX(h.version), 0))
			FROM t_order o LEFT JOIN t_order_history h ON h.order_no = o.order_no
			GROUP BY o.order_no HAVING COUNT(h.id) <> MAX(o.version) OR COALESCE(MAX(h.version), 0) <> MAX(o.version)`, nil},
		{"status_is_where_the_history_ends", `
			SELECT o.order_no, CONCAT('status ', o.status, ', history ends in ', h.to_status)
			FROM t_order o JOIN t_order_history h ON h.order_no = o.order_no AND h.version = o.version
			WHERE h.to_status <> o.status`, nil},
		{"history_is_connected", `
			SELECT h.order_no, CONCAT('version ', h.version, ' leaves ', COALESCE(h.from_status, 'nothing'), ', the one before entered ', COALESCE(p.to_status, 'nothing'))
			FROM t_order_history h LEFT JOIN t_order_history p ON p.order_no = h.order_no AND p.version = h.version - 1
			WHERE COALESCE(h.from_status, -1) <> COALESCE(p.to_status, -1)`, nil},
		{"every_move_owes_one_message", `
			SELECT h.order_no, CONCAT('version ', h.version, ' has ', COUNT(x.id), ' messages')
			FROM t_order_history h LEFT JOIN t_outbox x ON x.partition_key = h.order_no AND x.version = h.version AND x.topic LIKE 'order.%'
			WHERE h.create_time > ? GROUP BY h.order_no, h.version HAVING COUNT(x.id) <> 1`, []any{c.Now().Add(-outbox.Retention)}},
		{"every_message_was_owed", `
			SELECT x.msg_id, CONCAT('no move of ', x.partition_key, ' to version ', x.version)
			FROM t_outbox x LEFT JOIN t_order_history h ON h.order_no = x.partition_key AND h.version = x.version
			WHERE x.topic LIKE 'order.%' AND h.id IS NULL`, nil},
		{"no_key_in_progress_past_its_lease", `
			SELECT CONCAT(caller_id, ' ', idem_key), CONCAT('lease ended at ', lease_until)
			FROM t_idempotency_key WHERE state = 0 AND lease_until <= ?`, []any{c.Now()}},
	})
}

// Check returns every violation it finds, and an error when it could not look: no answer is not a good answer.
func (c *Checker) Check(ctx context.Context) ([]Violation, error) {
	violations := []Violation{}
	for _, inv := range c.invariants() {
		found, err := c.run(ctx, inv)
		if err != nil {
			return nil, fmt.Errorf("invariant %s: %w", inv.name, err)
		}
		violations = append(violations, found...)
	}
	for _, check := range []func(context.Context) ([]Violation, error){c.legalMoves, c.redisKeysExpire} {
		found, err := check(ctx)
		if err != nil {
			return nil, err
		}
		violations = append(violations, found...)
	}
	return violations, nil
}

func (c *Checker) run(ctx context.Context, inv invariant) ([]Violation, error) {
	return mysqldb.Collect(func(row mysqldb.Scanner) (Violation, error) {
		v := Violation{Invariant: inv.name}
		err := row.Scan(&v.Subject, &v.Detail)
		return v, err
	})(c.DB.QueryContext(ctx, inv.query+fmt.Sprintf(" LIMIT %d", maxRows), inv.args...))
}

// legalMoves holds the histories against the state table in the code.
func (c *Checker) legalMoves(ctx context.Context) ([]Violation, error) {
	const name = "moves_are_in_the_state_table"
	rows, err := c.DB.QueryContext(ctx, `
		SELECT from_status, to_status, MIN(order_no), COUNT(*) FROM t_order_history GROUP BY from_status, to_status`)
	if err != nil {
		return nil, fmt.Errorf("invariant %s: %w", name, err)
	}
	defer rows.Close()
	var found []Violation
	for rows.Next() {
		var (
			from    sql.NullInt16
			to      order.Status
			orderNo string
			count   int64
		)
		if err := rows.Scan(&from, &to, &orderNo, &count); err != nil {
			return nil, fmt.Errorf("invariant %s: %w", name, err)
		}
		legal := to == order.Init
		was := "nothing"
		if from.Valid {
			was = order.Status(from.Int16).String()
			legal = order.Status(from.Int16).CanMoveTo(to)
		}
		if !legal {
			found = append(found, Violation{name, orderNo, fmt.Sprintf("%s to %s, %d times", was, to, count)})
		}
	}
	return found, rows.Err()
}

// redisKeysExpire looks for locks and tokens that would live for ever. With Redis down there is nothing to look at.
func (c *Checker) redisKeysExpire(ctx context.Context) ([]Violation, error) {
	var (
		mu    sync.Mutex // the masters of a cluster are scanned at the same time
		found []Violation
	)
	scan := func(ctx context.Context, node *redis.Client) error {
		immortal, err := keysWithoutExpiry(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		for _, key := range immortal {
			found = append(found, Violation{"redis_keys_expire", key, "lives without an expiry"})
		}
		return err
	}
	var err error
	switch client := c.Redis.(type) {
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, scan)
	case *redis.Client:
		err = scan(ctx, client)
	default: // redisdb.Open makes no other
		err = fmt.Errorf("cannot scan a %T", client)
	}
	if err != nil {
		web.Log(ctx).Warn("cannot look for Redis keys without expiry", "error", err)
	}
	return found, nil
}

func keysWithoutExpiry(ctx context.Context, node *redis.Client) ([]string, error) {
	var immortal []string
	for _, pattern := range []string{"oncepay:lock:*", "oncepay:token:*"} {
		keys := node.Scan(ctx, 0, pattern, 1000).Iterator() // a thousand a step: few round trips, none of them long
		for keys.Next(ctx) {
			ttl, err := node.PTTL(ctx, keys.Val()).Result()
			if err != nil {
				return immortal, err
			}
			if ttl == -1 { // there, without an expiry; a key that went meanwhile is -2
				immortal = append(immortal, keys.Val())
			}
		}
		if err := keys.Err(); err != nil {
			return immortal, err
		}
	}
	return immortal, nil
}

// HTTP answers GET /v1/ops/invariants.
func (c *Checker) HTTP(r *http.Request) (web.Answer, error) {
	violations, err := c.Check(r.Context())
	if err != nil {
		return web.Answer{}, err
	}
	return web.JSON(http.StatusOK, struct {
		Violations []Violation `json:"violations"`
	}{violations})
}
