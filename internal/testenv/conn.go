package testenv

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// bufferSize of one direction, in bytes: MySQL's net_buffer_length and Redis's
// output chunk, that is, as much as a server sends at once.
const bufferSize = 16 << 10

var (
	// errUnsupported marks traffic that the proxy cannot follow. It fails the test,
	// as the cut that comes with it would look like a fault that was asked for.
	errUnsupported = errors.New("not understood by the fault proxy")

	// errCut ends a connection that a rule cuts.
	errCut = errors.New("cut by the fault proxy")
)

// wire is what the proxy must know of a protocol. There is one for each connection.
type wire interface {
	// handshake passes on all that comes before the first command.
	handshake(client, server *bufio.ReadWriter) error
	// readCommand reads one command.
	readCommand(client *bufio.Reader) (command, error)
	// copyReply passes on the complete reply to a command of this kind. It returns
	// errUnsupported for what cannot be such a reply.
	copyReply(dst io.Writer, server *bufio.Reader, kind byte) error
	// unsolicited tells from its first byte that a message answers no command.
	unsolicited(first byte) bool
}

// command is one request as it came from the client.
type command struct {
	text   string
	raw    []byte // valid until the next command is read
	kind   byte   // what copyReply has to know
	silent bool   // the server does not answer
}

// Kinds that every protocol has. MySQL's others are its command codes.
const (
	kindMessage     = 0x00 // answered by one message
	kindUnsolicited = 0xff // no command: the server speaks by itself
)

// exchange is a command on its way to its reply.
type exchange struct {
	kind   byte
	event  *Event
	action Action
	done   chan struct{} // closed once the reply has been dealt with, never after a cut
}

// conn is one client connection and its connection to the server. Requests and
// replies are carried by a goroutine each.
type conn struct {
	proxy *Proxy
	id    int
	wire  wire
	cut   context.CancelFunc // closes both sides, ends every wait
	done  chan struct{}      // closed once both sides are closed

	client, server *bufio.ReadWriter

	mu      sync.Mutex
	pending []*exchange // forwarded and not answered, oldest first

	last *exchange // the newest of pending ever; the request side's own
}

// serve carries the connection until one side closes it or ctx ends.
func (c *conn) serve(ctx context.Context, client net.Conn) {
	defer close(c.done)
	defer c.cut()
	defer closeWith(ctx, client)()
	if c.proxy.black.Load() {
		// The outcome of draining is of no interest: it ends when the client does.
		_, _ = io.Copy(io.Discard, client)
		return
	}
	server, err := new(net.Dialer).DialContext(ctx, c.proxy.network, c.proxy.upstream)
	if err != nil {
		return // the client sees a cut connection
	}
	defer closeWith(ctx, server)()

	c.client, c.server = buffered(client), buffered(server)
	if err := c.wire.handshake(c.client, c.server); err != nil {
		c.report(err)
		return
	}
	var replies sync.WaitGroup
	replies.Go(func() {
		defer c.cut()
		c.report(c.replies(ctx))
	})
	err = c.requests(ctx)
	c.report(err)
	if halfCloser, ok := server.(interface{ CloseWrite() error }); ok && err == io.EOF {
		// Like a client's own close: the server still reads and carries out what
		// was sent before, which a full close could take from it.
		err = halfCloser.CloseWrite()
	}
	if err != nil {
		c.cut()
	}
	replies.Wait()
}

// closeWith closes nc when ctx ends or the returned function is called.
func closeWith(ctx context.Context, nc net.Conn) (closeNow func()) {
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	return func() {
		stop()
		nc.Close()
	}
}

func buffered(nc net.Conn) *bufio.ReadWriter {
	return bufio.NewReadWriter(bufio.NewReaderSize(nc, bufferSize), bufio.NewWriterSize(nc, bufferSize))
}

func (c *conn) report(err error) {
	if errors.Is(err, errUnsupported) || errors.Is(err, bufio.ErrBufferFull) {
		c.proxy.t.Errorf("fault proxy: connection %d: %v", c.id, err)
	}
}

// requests carries commands to the server. It returns io.EOF when the client has
// closed the connection between two commands.
func (c *conn) requests(ctx context.Context) error {
	for {
		if c.client.Reader.Buffered() == 0 { // else more of the pipeline is here already
			if err := c.server.Flush(); err != nil {
				return err
			}
		}
		cmd, err := c.wire.readCommand(c.client.Reader)
		if err != nil {
			// Complete commands before the end, or before a torn one, still count.
			return cmp.Or(c.server.Flush(), err)
		}
		if err := c.forward(ctx, cmd); err != nil {
			return err
		}
	}
}

func (c *conn) forward(ctx context.Context, cmd command) error {
	event, action := c.proxy.arrived(c.id, cmd.text)
	if action.cut || action.before != nil {
		// What came before this command in the pipeline must not wait with it.
		if err := c.server.Flush(); err != nil {
			return err
		}
	}
	if action.cut {
		c.settle(ctx)
		return errCut
	}
	if action.before != nil {
		if err := action.before(ctx); err != nil {
			return err
		}
	}
	if c.proxy.black.Load() {
		return nil
	}
	c.proxy.stamp(&event.Forwarded)
	if !cmd.silent {
		c.push(&exchange{kind: cmd.kind, event: event, action: action, done: make(chan struct{})})
	}
	if _, err := c.server.Write(cmd.raw); err != nil {
		return err
	}
	if action.swallow {
		if err := c.server.Flush(); err != nil {
			return err
		}
		c.settle(ctx)
		return errCut
	}
	return nil
}

// settle waits until all replies due have gone to the client, or the connection is
// cut.
func (c *conn) settle(ctx context.Context) {
	if c.last == nil {
		return
	}
	select {
	case <-c.last.done:
	case <-ctx.Done():
	}
}

func (c *conn) push(x *exchange) {
	c.last = x
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = append(c.pending, x)
}

// pop returns the exchange that a message with this first byte answers, or nil.
func (c *conn) pop(first byte) *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 || c.wire.unsolicited(first) {
		return nil
	}
	x := c.pending[0]
	c.pending = c.pending[1:]
	return x
}

// idle reports whether no reply is due.
func (c *conn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending) == 0
}

// replies carries replies to the client until the server closes the connection.
func (c *conn) replies(ctx context.Context) error {
	for {
		if c.server.Reader.Buffered() == 0 {
			if err := c.client.Flush(); err != nil {
				return err
			}
		}
		first, err := c.server.Peek(1)
		if err != nil {
			return err
		}
		x := c.pop(first[0])
		if x == nil {
			if err := c.wire.copyReply(c.client, c.server.Reader, kindUnsolicited); err != nil {
				return err
			}
			continue
		}
		if err := c.answer(ctx, x); err != nil {
			return err
		}
		if c.idle() {
			if err := c.client.Flush(); err != nil {
				return err
			}
		}
		close(x.done)
	}
}

func (c *conn) answer(ctx context.Context, x *exchange) error {
	if !x.action.swallow && x.action.after == nil && !c.proxy.black.Load() {
		c.proxy.stamp(&x.event.Replied)
		return c.wire.copyReply(c.client, c.server.Reader, x.kind)
	}
	// Earlier replies must not wait with this one, nor be lost with it.
	if err := c.client.Flush(); err != nil {
		return err
	}
	var reply bytes.Buffer // complete, so the server has carried out the command
	if err := c.wire.copyReply(&reply, c.server.Reader, x.kind); err != nil {
		return err
	}
	if x.action.swallow {
		return errCut
	}
	if x.action.after != nil {
		if err := x.action.after(ctx); err != nil {
			return err
		}
	}
	if c.proxy.black.Load() {
		return nil
	}
	c.proxy.stamp(&x.event.Replied)
	_, err := c.client.Write(reply.Bytes())
	return err
}

// transfer passes on n bytes, as many at a time as the buffer holds.
func transfer(dst io.Writer, src *bufio.Reader, n int) error {
	for n > 0 {
		chunk, err := src.Peek(min(n, src.Size()))
		if err != nil {
			return err
		}
		if _, err := dst.Write(chunk); err != nil {
			return err
		}
		if _, err := src.Discard(len(chunk)); err != nil {
			return err
		}
		n -= len(chunk)
	}
	return nil
}

// readN appends the next n bytes of src to buf.
func readN(buf []byte, src *bufio.Reader, n int) ([]byte, error) {
	start := len(buf)
	buf = append(buf, make([]byte, n)...) // grows buf in place, without a second slice
	if _, err := io.ReadFull(src, buf[start:]); err != nil {
		return buf, err
	}
	return buf, nil
}
