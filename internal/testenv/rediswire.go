package testenv

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// redisWire follows RESP2 and RESP3: requests as arrays of bulk strings, replies of
// every type. Publish/subscribe and MONITOR, whose messages answer no command, are
// not supported, except for RESP3's push messages.
type redisWire struct {
	buf []byte // of readCommand
}

// SetNX matches SET with the option NX, and SETNX, of keys that begin with prefix:
// the way a lock or a token is taken. A value with a word NX in it is taken for the
// option.
func SetNX(prefix string) Match {
	return func(cmd string) bool {
		words := strings.Fields(cmd)
		if len(words) < 3 || !strings.HasPrefix(words[1], prefix) {
			return false
		}
		if words[0] == "SETNX" {
			return true
		}
		for _, option := range words[3:] {
			if strings.EqualFold(option, "NX") {
				return words[0] == "SET"
			}
		}
		return false
	}
}

// handshake does nothing: a Redis client logs in by commands.
func (w *redisWire) handshake(_, _ *bufio.ReadWriter) error { return nil }

func (w *redisWire) readCommand(client *bufio.Reader) (command, error) {
	w.buf = w.buf[:0]
	words, err := w.readCount(client, '*')
	if err != nil {
		return command{}, err
	}
	var text strings.Builder
	for i := range words {
		size, err := w.readCount(client, '$')
		if err != nil {
			return command{}, err
		}
		if w.buf, err = readN(w.buf, client, size+len("\r\n")); err != nil {
			return command{}, err
		}
		word := w.buf[len(w.buf)-size-len("\r\n"):][:size]
		if i == 0 {
			word = bytes.ToUpper(word)
		} else {
			text.WriteByte(' ')
		}
		text.Write(word[:min(size, max(0, maxText-text.Len()))])
	}
	cmd := command{text: text.String(), raw: w.buf, kind: kindMessage}
	if verb, _, _ := strings.Cut(cmd.text, " "); strings.HasSuffix(verb, "SUBSCRIBE") || verb == "MONITOR" {
		return command{}, fmt.Errorf("%w: Redis command %s", errUnsupported, verb)
	}
	return cmd, nil
}

// readCount reads a line like "*3" or "$11", which must begin with mark.
func (w *redisWire) readCount(client *bufio.Reader, mark byte) (int, error) {
	line, err := client.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	w.buf = append(w.buf, line...)
	n, err := lineCount(line)
	if err != nil || line[0] != mark || n < 0 {
		return 0, fmt.Errorf("%w: Redis request line %q", errUnsupported, line)
	}
	return n, nil
}

// lineCount returns the number in a line like "*3\r\n"; -1 stands for null.
func lineCount(line []byte) (int, error) {
	return strconv.Atoi(string(bytes.TrimSpace(line[1:])))
}

func (w *redisWire) unsolicited(first byte) bool { return first == '>' }

// copyReply passes on one value with all that is nested in it.
func (w *redisWire) copyReply(dst io.Writer, server *bufio.Reader, kind byte) error {
	line, err := server.ReadSlice('\n')
	if err != nil {
		return err
	}
	if _, err := dst.Write(line); err != nil {
		return err
	}
	mark, values := line[0], 0
	if kind == kindUnsolicited && mark != '>' && mark != '-' { // '-': too many clients
		return fmt.Errorf("%w: Redis reply without a command", errUnsupported)
	}
	switch mark {
	case '+', '-', ':', '_', ',', '#', '(': // complete in one line
		return nil
	case '$', '=', '!', '*', '~', '>', '%', '|':
		if values, err = lineCount(line); err != nil {
			return fmt.Errorf("%w: Redis reply line %q", errUnsupported, line)
		}
	default:
		return fmt.Errorf("%w: Redis reply line %q", errUnsupported, line)
	}
	switch mark {
	case '$', '=', '!':
		if values < 0 {
			return nil
		}
		return transfer(dst, server, values+len("\r\n"))
	case '%':
		values *= 2
	case '|': // attributes, and then the value they belong to
		values = 2*values + 1
	}
	for range values {
		if err := w.copyReply(dst, server, kindMessage); err != nil {
			return err
		}
	}
	return nil
}
