// Command mockpay serves the fake payment channel by itself, for several instances of the service to share. It keeps
// everything in memory. See internal/mockpay for its routes.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"example.com/oncepay/internal/config"
	"example.com/oncepay/internal/mockpay"
)

const (
	// stopTimeout is how long answers and deliveries in flight may take after a stop signal: more than a delivery's own 5 s.
	stopTimeout = 6 * time.Second
	// readHeaderTimeout keeps slow clients from holding connections. There is no write timeout: answering late is a feature.
	readHeaderTimeout = 5 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "mockpay:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. What it writes to stdout is for the person who started it, logs go to stderr.
func run(ctx context.Context, getenv func(string) string, stdout, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	channel, err := mockpay.New(mockpay.Config{
		Merchants: map[string][]string{
			"m-mockpay":  config.List(cmp.Or(getenv("MOCKPAY_SECRET"), config.DevMockpaySecret)),
			"m-mockpay2": config.List(cmp.Or(getenv("MOCKPAY2_SECRET"), config.DevMockpay2Secret)),
		},
		Log: log,
	})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cmp.Or(getenv("MOCKPAY_ADDR"), "127.0.0.1:9090"))
	if err != nil {
		return fmt.Errorf("listen on MOCKPAY_ADDR: %w", err)
	}
	fmt.Fprintf(stdout, welcome, "http://"+listener.Addr().String())
	server := &http.Server{Handler: channel, ReadHeaderTimeout: readHeaderTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	// The channel first: it cuts off the answers that a fault delays, for which Shutdown would wait.
	return errors.Join(err, channel.Close(ctx), server.Shutdown(ctx))
}

const welcome = `mockpay is ready on %[1]s

  # a trade; send this line as often as you like: it stays one trade. Open its pay_url to pay
  curl -sS %[1]s/v1/trades -H 'Content-Type: application/json' -d '{"merchant_id":"m-mockpay","out_trade_no":"demo-1","amount":1999,"currency":"CNY","notify_url":""}'

  # everything that really happened
  curl -sS %[1]s/v1/effects
`
