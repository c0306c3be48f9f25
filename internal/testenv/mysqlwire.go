package testenv

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// The names and numbers are those of the MySQL client/server protocol.
const (
	headerSize = 4             // three bytes of length, one of sequence
	maxPayload = 1<<24 - 1     // a packet this long is continued by the next one
	headSize   = 1 + 9 + 9 + 2 // an OK packet up to its status flags, at its longest

	packetOK          = 0x00
	packetMoreData    = 0x01 // during authentication
	packetLocalInfile = 0xfb
	packetEnd         = 0xfe // OK at the end of rows
	packetERR         = 0xff

	fastAuthSuccess = 0x03 // caching_sha2_password: OK follows without an answer

	clientCompress        = 1 << 5
	clientSSL             = 1 << 11
	clientDeprecateEOF    = 1 << 24
	clientZstd            = 1 << 26
	clientQueryAttributes = 1 << 27

	serverMoreResults = 1 << 3

	comQuit             = 0x01
	comInitDB           = 0x02
	comQuery            = 0x03
	comPing             = 0x0e
	comStmtPrepare      = 0x16
	comStmtExecute      = 0x17
	comStmtSendLongData = 0x18
	comStmtClose        = 0x19
	comStmtReset        = 0x1a
	comSetOption        = 0x1b
	comResetConnection  = 0x1f
)

// mysqlWire follows the MySQL protocol as Go's driver speaks it, with the text and
// the binary form of results, several results to a query, and payloads of any size.
type mysqlWire struct {
	buf []byte // of readCommand
}

// handshake passes packets to and fro until the server accepts the login. It
// returns io.EOF if the server refuses it.
func (w *mysqlWire) handshake(client, server *bufio.ReadWriter) error {
	greeting, err := passPayload(client, server)
	if err != nil {
		return err
	}
	if greeting[0] == packetERR { // too many connections, say
		return io.EOF
	}
	login, err := passPayload(server, client)
	if err != nil {
		return err
	}
	if err := checkCapabilities(greeting, login); err != nil {
		return err
	}
	for {
		answer, err := passPayload(client, server)
		if err != nil {
			return err
		}
		switch {
		case answer[0] == packetOK:
			return nil
		case answer[0] == packetERR:
			return io.EOF
		case answer[0] == packetMoreData && len(answer) == 2 && answer[1] == fastAuthSuccess:
			continue
		}
		if _, err := passPayload(server, client); err != nil {
			return err
		}
	}
}

// checkCapabilities refuses what the proxy cannot follow. The end of rows without an
// EOF packet of its own, which it relies on, came with MySQL 5.7 and MariaDB 10.2.
func checkCapabilities(greeting, login []byte) error {
	// Protocol version, server version up to a NUL, then 4 bytes of connection id,
	// 8 of salt and a filler; the capabilities are split by 1 byte of character set
	// and 2 of status.
	version := bytes.IndexByte(greeting, 0)
	if at := version + 1 + 4 + 8 + 1; version > 0 && len(greeting) >= at+7 && len(login) >= 4 {
		server := uint32(binary.LittleEndian.Uint16(greeting[at:])) |
			uint32(binary.LittleEndian.Uint16(greeting[at+5:]))<<16
		both := server & binary.LittleEndian.Uint32(login)
		if both&(clientSSL|clientCompress|clientZstd|clientQueryAttributes|clientDeprecateEOF) == clientDeprecateEOF {
			return nil
		}
		return fmt.Errorf("%w: MySQL capabilities %#x", errUnsupported, both)
	}
	return fmt.Errorf("%w: MySQL handshake", errUnsupported)
}

// passPayload passes on one packet at once and returns its payload, never empty.
func passPayload(dst, src *bufio.ReadWriter) ([]byte, error) {
	raw, err := readPayload(nil, src.Reader)
	if err != nil {
		return nil, err
	}
	if _, err := dst.Write(raw); err != nil {
		return nil, err
	}
	return raw[headerSize:], dst.Flush()
}

// readPayload reads one payload with its packet headers into buf.
func readPayload(buf []byte, src *bufio.Reader) ([]byte, error) {
	buf = buf[:0]
	for {
		header, err := src.Peek(headerSize)
		if err != nil {
			return buf, err
		}
		size := payloadSize(header)
		if buf, err = readN(buf, src, headerSize+size); err != nil {
			return buf, err
		}
		if len(buf) == headerSize {
			return buf, fmt.Errorf("%w: empty MySQL packet", errUnsupported)
		}
		if size < maxPayload {
			return buf, nil
		}
	}
}

func payloadSize(header []byte) int {
	return int(header[0]) | int(header[1])<<8 | int(header[2])<<16
}

func (w *mysqlWire) readCommand(client *bufio.Reader) (command, error) {
	var err error
	if w.buf, err = readPayload(w.buf, client); err != nil {
		return command{}, err
	}
	cmd := command{raw: w.buf}
	payload := w.buf[headerSize:]
	argument := string(payload[1:min(len(payload), 1+maxText)])
	switch payload[0] {
	case comQuery:
		cmd.text, cmd.kind = strings.TrimSpace(argument), comQuery
	case comStmtPrepare:
		cmd.text, cmd.kind = "COM_STMT_PREPARE "+strings.TrimSpace(argument), comStmtPrepare
	case comStmtExecute:
		cmd.text, cmd.kind = "COM_STMT_EXECUTE", comQuery // same form of reply
	case comStmtSendLongData:
		cmd.text, cmd.silent = "COM_STMT_SEND_LONG_DATA", true
	case comStmtClose:
		cmd.text, cmd.silent = "COM_STMT_CLOSE", true
	case comQuit:
		cmd.text, cmd.silent = "COM_QUIT", true
	case comInitDB:
		cmd.text = "COM_INIT_DB " + argument
	case comPing:
		cmd.text = "COM_PING"
	case comStmtReset:
		cmd.text = "COM_STMT_RESET"
	case comSetOption:
		cmd.text = "COM_SET_OPTION"
	case comResetConnection:
		cmd.text = "COM_RESET_CONNECTION"
	default:
		return command{}, fmt.Errorf("%w: MySQL command %#x", errUnsupported, payload[0])
	}
	return cmd, nil
}

// unsolicited is false: an error that the server sends by itself, such as that the
// connection was killed, stands in place of the next reply.
func (w *mysqlWire) unsolicited(byte) bool { return false }

func (w *mysqlWire) copyReply(dst io.Writer, server *bufio.Reader, kind byte) error {
	switch kind {
	case comQuery:
		return copyResults(dst, server)
	case comStmtPrepare:
		return copyPrepared(dst, server)
	default:
		p, err := copyPayload(dst, server)
		if err == nil && kind == kindUnsolicited && p.head[0] != packetERR {
			return fmt.Errorf("%w: MySQL reply without a command", errUnsupported)
		}
		return err
	}
}

// copyResults passes on all results of a query: each is OK, an error, or a column
// count, columns and rows. Only the end of the rows needs to be found: neither the
// count nor a column can be taken for it.
func copyResults(dst io.Writer, server *bufio.Reader) error {
	for {
		p, err := copyPayload(dst, server)
		if err != nil {
			return err
		}
		switch p.head[0] {
		case packetOK:
		case packetERR:
			return nil
		case packetLocalInfile:
			return fmt.Errorf("%w: LOAD DATA LOCAL", errUnsupported)
		default:
			for !p.isEnd() {
				if p, err = copyPayload(dst, server); err != nil {
					return err
				}
				if p.head[0] == packetERR {
					return nil
				}
			}
		}
		if p.status()&serverMoreResults == 0 {
			return nil
		}
	}
}

// copyPrepared passes on the answer to COM_STMT_PREPARE: the counts, then a
// packet for each parameter and each column.
func copyPrepared(dst io.Writer, server *bufio.Reader) error {
	p, err := copyPayload(dst, server)
	if err != nil || p.head[0] == packetERR {
		return err
	}
	// Behind OK and the statement's id.
	columns, parameters := binary.LittleEndian.Uint16(p.head[5:]), binary.LittleEndian.Uint16(p.head[7:])
	for range int(columns) + int(parameters) {
		if _, err := copyPayload(dst, server); err != nil {
			return err
		}
	}
	return nil
}

// payload is what has to be known of one that was passed on.
type payload struct {
	size int
	head [headSize]byte // zeros behind a shorter one
}

// isEnd tells the end of the rows from a row, whose first byte can be the same if a
// value of 16 MB or more comes first.
func (p payload) isEnd() bool { return p.head[0] == packetEnd && p.size < maxPayload }

// status returns the status flags of an OK packet.
func (p payload) status() uint16 {
	at := 1
	for range 2 { // affected rows, last insert id
		at += lengthEncodedSize(p.head[at])
	}
	return binary.LittleEndian.Uint16(p.head[at:])
}

// lengthEncodedSize is the number of bytes of a length-encoded integer.
func lengthEncodedSize(first byte) int {
	switch first {
	case 0xfc:
		return 3
	case 0xfd:
		return 4
	case 0xfe:
		return 9
	default:
		return 1
	}
}

// copyPayload passes on one payload with its packet headers.
func copyPayload(dst io.Writer, src *bufio.Reader) (payload, error) {
	var p payload
	for {
		header, err := src.Peek(headerSize)
		if err != nil {
			return p, err
		}
		size := payloadSize(header)
		if p.size == 0 {
			start, err := src.Peek(headerSize + min(size, headSize))
			if err != nil {
				return p, err
			}
			copy(p.head[:], start[headerSize:])
		}
		if err := transfer(dst, src, headerSize+size); err != nil {
			return p, err
		}
		p.size += size
		if size < maxPayload {
			return p, nil
		}
	}
}
