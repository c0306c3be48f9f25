package main

import (
	"context"
	"net/http"
	"time"

	"example.com/oncepay/internal/redisdb"
	"example.com/oncepay/internal/web"
)

// probeTimeout bounds a readiness probe, whose caller usually gives up after a second or two.
const probeTimeout = time.Second

// healthz says that the process runs. It asks nobody, so that a database's trouble does not get the process killed.
func (s *service) healthz(*http.Request) (web.Answer, error) {
	return web.JSON(http.StatusOK, map[string]string{"status": "ok"})
}

type readiness struct {
	Status   string            `json:"status"` // ready, degraded or unavailable
	Checks   map[string]string `json:"checks"`
	Warnings []string          `json:"warnings"`
}

// readyz says whether requests should be sent here. Without MySQL none can be served; without Redis all but token issue
// can, with fewer guards.
func (s *service) readyz(r *http.Request) (web.Answer, error) {
	state := readiness{Status: "ready", Checks: map[string]string{"mysql": "ok", "redis": "ok"}, Warnings: []string{}}
	status := http.StatusOK
	s.probeRedis(r.Context(), &state)
	for _, guard := range s.cfg.DisableGuards {
		state.Warnings = append(state.Warnings, "guard "+guard+" is disabled")
	}
	ctx, cancel := context.WithTimeout(r.Context(), probeTimeout) // its own: what Redis took is not MySQL's fault
	defer cancel()
	if err := s.stores.db.PingContext(ctx); err != nil {
		state.Checks["mysql"] = "unreachable"
		state.Status, status = "unavailable", http.StatusServiceUnavailable
	}
	if s.draining.Load() {
		state.Status, status = "draining", http.StatusServiceUnavailable
	}
	return web.JSON(status, state)
}

// probeRedis notes what is wrong with Redis. None of it makes the service unavailable.
func (s *service) probeRedis(ctx context.Context, state *readiness) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if policy, err := redisdb.EvictionPolicy(ctx, s.stores.redis); err != nil {
		if pingErr := s.stores.redis.Ping(ctx).Err(); pingErr != nil {
			state.Status, state.Checks["redis"] = "degraded", "unreachable"
			state.Warnings = append(state.Warnings, "Redis is unreachable: token and lock guards are skipped, the data layer decides")
		} else {
			state.Warnings = append(state.Warnings, "Redis does not tell its maxmemory-policy; see to it that it is noeviction")
		}
	} else if policy != "noeviction" {
		state.Status = "degraded"
		state.Warnings = append(state.Warnings, "Redis has maxmemory-policy "+policy+"; set noeviction, or locks and tokens may be dropped while needed")
	}
}
