package protocol

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
)

// byteChecks are about bodies that a picker must not change. A picker that refuses
// one with 400 has not changed it; where a body is valid JSON it may not.
func byteChecks() []Check {
	checks := []Check{
		bytesCheck("big-numbers", "Integers beyond 2^53, exponents and trailing zeros keep their spelling.", false, func(l *lab) []byte {
			return l.document(`"seed":9007199254740993,"user_data":{"id":12345678901234567890,"r":1e-7,"z":1.0,"e":1E5,"m":-0,"n":-0.0,"d":0.10,` +
				`"big":123456789012345678901234,"tiny":4.9e-324}`)
		}),
		bytesCheck("escapes", "Escaped and unescaped characters keep their spelling.", false, func(l *lab) []byte {
			return l.document(`"user":"\u2028 \/ <tag> & \u003c \ud83d\ude00 😀 \u00e9 é \t \" \\"`)
		}),
		bytesCheck("key-order", "Members keep their order.", false, func(l *lab) []byte {
			return l.document(`"z":1,"a":2,"m":{"y":1,"b":2},"temperature":0.5,"logit_bias":{"9":1,"10":2}`)
		}),
		bytesCheck("white-space", "White space inside and after the document stays.", false, func(l *lab) []byte {
			return fmt.Appendf(nil, "\r\n{ \"model\" :\t%q ,\r\n  \"prompt\" : \"p\"  } \n\n", l.model())
		}),
		bytesCheck("unknown-members", "Members that nobody knows arrive.", false, func(l *lab) []byte {
			return l.document(`"stream_options":{"include_usage":true,"x":1},"nvext":{"a":[1,null]},"x_vendor":{"k":[1,null,{"deep":true}]},"":0`)
		}),
		bytesCheck("duplicate-keys", "A document with a key twice passes unchanged, or is refused with 400.", true, func(l *lab) []byte {
			return l.document(`"a":1,"a":2,"temperature":0,"temperature":1`)
		}),
		bytesCheck("duplicate-model", "A document that names its model twice passes unchanged, or is refused with 400.", true, func(l *lab) []byte {
			return fmt.Appendf(nil, `{"model":%q,"prompt":"p","model":%q}`, l.model(), l.model())
		}),
		bytesCheck("nul", "NUL bytes, escaped in a string, pass unchanged.", false, func(l *lab) []byte {
			return l.document(`"user":"a\u0000b"`)
		}),
		bytesCheck("raw-nul", "A raw NUL byte passes unchanged, or is refused with 400.", true, func(l *lab) []byte {
			return l.document("\"user\":\"a\x00b\"")
		}),
		bytesCheck("invalid-utf8", "Invalid UTF-8 passes unchanged, or is refused with 400; it is never repaired.", true, func(l *lab) []byte {
			return l.document("\"user\":\"\xff\xfe \xc3(\"")
		}),
		bytesCheck("lone-surrogate", "An escaped half of a surrogate pair passes unchanged, or is refused with 400.", true, func(l *lab) []byte {
			return l.document(`"user":"\ud83d"`)
		}),
		bytesCheck("deep-nesting", "A document nested 100,000 deep passes unchanged, or is refused with 400; it ends no process.",
			true, func(l *lab) []byte {
				return l.document(`"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000))
			}),
		bytesCheck("not-json", "A body that is no JSON passes unchanged, or is refused with 400.", true, func(*lab) []byte {
			return []byte("{\"model\": prompt=hello")
		}),
		{
			ID: "bytes/ten-thousand-messages", Source: FromUs,
			Rule: "A conversation of 10,000 messages passes unchanged.",
			run: func(ctx context.Context, l *lab) error {
				return l.unchanged(ctx, post(chatPath), l.conversation(10_000), false)
			},
		},
	}
	return append(checks, rawByteChecks()...)
}

// bytesCheck sends a body to the completions path.
func bytesCheck(name, rule string, mayRefuse bool, body func(*lab) []byte) Check {
	return Check{ID: "bytes/" + name, Rule: rule, Source: FromUs, run: func(ctx context.Context, l *lab) error {
		return l.unchanged(ctx, post(completionsPath), body(l), mayRefuse)
	}}
}

// unchanged wants the body back as it was.
func (l *lab) unchanged(ctx context.Context, o opening, body []byte, mayRefuse bool) error {
	t := l.play(ctx, script(o, cut(body, 16_384)...)...)
	if mayRefuse && t.immediate != nil {
		return t.refused(400)
	}
	return t.echoed(body)
}

// rawByteChecks are about bodies that are not plain JSON.
func rawByteChecks() []Check {
	return []Check{
		{
			ID: "bytes/random", Source: FromUs,
			Rule: "A body of random bytes on a path that nobody reads passes unchanged.",
			run: func(ctx context.Context, l *lab) error {
				return l.unchanged(ctx, post(unknownPath, "content-type", "application/octet-stream"), noise(200_000), false)
			},
		},
		{
			ID: "bytes/multipart", Source: FromUs,
			Rule: "A multipart form passes unchanged.",
			run: func(ctx context.Context, l *lab) error {
				form := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n" + string(noise(5000)) +
					"\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + l.model() + "\r\n--b--\r\n"
				o := opening{method: "POST", path: "/v1/audio/transcriptions", headers: [][2]string{{"content-type", "multipart/form-data; boundary=b"}}}
				return l.unchanged(ctx, o, []byte(form), false)
			},
		},
		{
			ID: "bytes/gzip", Source: FromUs,
			Rule: "A compressed body passes with the client's own bytes, or is refused with 415.",
			run: func(ctx context.Context, l *lab) error {
				var b bytes.Buffer
				z := gzip.NewWriter(&b)
				if _, err := z.Write(l.completion(20_000)); err != nil {
					return err
				}
				if err := z.Close(); err != nil {
					return err
				}
				return l.compressed(ctx, "gzip", b.Bytes(), 415)
			},
		},
		{
			ID: "bytes/labelled-gzip", Source: FromUs,
			Rule: "A plain body that is labelled as gzip passes unchanged, or is refused with 400 or 415.",
			run: func(ctx context.Context, l *lab) error {
				return l.compressed(ctx, "gzip", l.completion(500), 400, 415)
			},
		},
		{
			ID: "bytes/unknown-encoding", Source: FromUs,
			Rule: "A body in an encoding that the picker does not know passes unchanged, or is refused with 415.",
			run: func(ctx context.Context, l *lab) error {
				return l.compressed(ctx, "br", noise(3000), 415)
			},
		},
		{
			ID: "bytes/no-content-length-change", Source: FromEnvoy,
			Rule: "The picker does not touch content-length: the body keeps its length.",
			run: func(ctx context.Context, l *lab) error {
				body := l.completion(5000)
				n := fmt.Sprint(len(body))
				t := l.play(ctx, script(post(completionsPath, "content-length", n), bodyMessage(body, true))...)
				if err := t.picked(); err != nil {
					return err
				}
				if got := t.upstream()["content-length"]; len(got) != 1 || got[0] != n {
					return t.fail("content-length "+n, "%q", got)
				}
				return nil
			},
		},
	}
}

func (l *lab) compressed(ctx context.Context, encoding string, body []byte, refusals ...int) error {
	t := l.play(ctx, script(post(completionsPath, "content-encoding", encoding), cut(body, 1000)...)...)
	if t.immediate != nil {
		return t.refused(refusals...)
	}
	return t.echoed(body)
}

// conversation is a chat body of n messages.
func (l *lab) conversation(n int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"model":%q,"messages":[`, l.model())
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":%q,"content":"message %d"}`, []string{"user", "assistant"}[i%2], i)
	}
	b.WriteString("]}")
	return b.Bytes()
}

// noise is the same n bytes each time.
func noise(n int) []byte {
	r := rand.NewChaCha8([32]byte{7})
	b := make([]byte, n)
	_, _ = r.Read(b) // never fails
	return b
}
