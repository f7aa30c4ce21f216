package protocol

import (
	"context"
	"encoding/json"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// distortion is a fault put between the suite and a picker that has none.
type distortion struct {
	name string
	// answer changes what the picker says; nil for nothing.
	answer func(d *distorted, a *answer) []*answer
	// message changes what it hears; nil for nothing.
	message func(m *request)
	// fails are checks that must notice, as a regular expression each.
	fails []string
}

// distorted is the state of one stream.
type distorted struct {
	held []*answer
	err  error
}

func distortions() []distortion {
	return slices.Concat(shapeDistortions(), contentDistortions())
}

func shapeDistortions() []distortion {
	return []distortion{
		{
			name: "the headers are answered after the first piece", fails: []string{"order/headers-before-body", "trailers/end-the-body"},
			answer: func(d *distorted, a *answer) []*answer {
				if a.GetRequestHeaders() != nil {
					d.held = append(d.held, a)
					return nil
				}
				out := append([]*answer{a}, d.held...)
				d.held = nil
				return out
			},
		},
		{
			name: "the headers are answered twice", fails: []string{"order/headers-once", "order/no-body-no-body-answer", "modes/buffered"},
			answer: func(_ *distorted, a *answer) []*answer {
				if a.GetRequestHeaders() != nil {
					return []*answer{a, a}
				}
				return []*answer{a}
			},
		},
		{
			name: "pieces are answered without their bytes", fails: []string{"order/body-is-streamed", "response/chunks-untouched"},
			answer: func(_ *distorted, a *answer) []*answer {
				for _, b := range []*extprocv3.BodyResponse{a.GetRequestBody(), a.GetResponseBody()} {
					if b != nil {
						b.Response = nil
					}
				}
				return []*answer{a}
			},
		},
		{
			name:  "every piece is an end",
			fails: []string{"order/end-once-and-last", "trailers/no-end-of-stream", "response/chunks-untouched", "response/trailers"},
			answer: func(_ *distorted, a *answer) []*answer {
				for _, b := range []*extprocv3.BodyResponse{a.GetRequestBody(), a.GetResponseBody()} {
					if s := b.GetResponse().GetBodyMutation().GetStreamedResponse(); s != nil {
						s.EndOfStream = true
					}
				}
				return []*answer{a}
			},
		},
		{
			name: "no piece is an end", fails: []string{"order/end-once-and-last", "body/empty", "body/end-in-empty-piece"},
			answer: func(_ *distorted, a *answer) []*answer {
				if s := a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse(); s != nil {
					s.EndOfStream = false
				}
				return []*answer{a}
			},
		},
		{
			name: "trailers are not answered", fails: []string{"trailers/.*", "modes/.*trailers", "response/trailers"},
			answer: func(_ *distorted, a *answer) []*answer {
				if a.GetRequestTrailers() != nil || a.GetResponseTrailers() != nil {
					return nil
				}
				return []*answer{a}
			},
		},
		{
			name: "a piece waits for the next", fails: []string{"response/chunks-not-held"},
			answer: func(d *distorted, a *answer) []*answer {
				if a.GetResponseBody() == nil {
					return []*answer{a}
				}
				out := d.held
				d.held = []*answer{a}
				return out
			},
		},
		{
			name: "refusals are gRPC errors", fails: []string{"subset/.*is-503", "refusal/(no-endpoint|shed|malformed|unknown|body-over|length-over|slow).*"},
			answer: func(d *distorted, a *answer) []*answer {
				if a.GetImmediateResponse() != nil {
					d.err = status.Error(codes.Unavailable, "no endpoint")
					return nil
				}
				return []*answer{a}
			},
		},
	}
}

func contentDistortions() []distortion {
	first := func(a *answer) *extprocv3.HeaderMutation {
		return a.GetRequestHeaders().GetResponse().GetHeaderMutation()
	}
	each := func(change func(h *corev3.HeaderValueOption)) func(*distorted, *answer) []*answer {
		return func(_ *distorted, a *answer) []*answer {
			for _, h := range first(a).GetSetHeaders() {
				change(h)
			}
			return []*answer{a}
		}
	}
	return []distortion{
		{
			name: "the body is decoded and encoded", fails: []string{"bytes/(big-numbers|key-order|escapes|white-space)"},
			answer: func(_ *distorted, a *answer) []*answer {
				s := a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
				var v any
				if json.Unmarshal(s.GetBody(), &v) == nil {
					s.Body, _ = json.Marshal(v)
				}
				return []*answer{a}
			},
		},
		{
			name: "no metadata", fails: []string{"destination/header-equals-metadata.*", "destination/ipv6-brackets"},
			answer: func(_ *distorted, a *answer) []*answer {
				a.DynamicMetadata = nil
				return []*answer{a}
			},
		},
		{
			name: "a header as text", fails: []string{"destination/raw-value"},
			answer: each(func(h *corev3.HeaderValueOption) {
				h.Header.Value, h.Header.RawValue = string(h.GetHeader().GetRawValue()), nil
			}),
		},
		{
			name: "one address twice", fails: []string{"destination/list-is-distinct"},
			answer: each(func(h *corev3.HeaderValueOption) {
				if v := h.GetHeader(); v.GetKey() == destinationKey {
					one, _, _ := strings.Cut(string(v.GetRawValue()), ",")
					v.RawValue = []byte(one + "," + one)
				}
			}),
		},
		{
			name: "an address of no endpoint", fails: []string{"destination/is-an-endpoint", "subset/list-of-one", "subset/with-body"},
			answer: each(func(h *corev3.HeaderValueOption) {
				if v := h.GetHeader(); v.GetKey() == destinationKey {
					v.RawValue = []byte("198.51.100.9:8000")
				}
			}),
		},
		{
			name: "IPv6 without brackets", fails: []string{"destination/ipv6-brackets"},
			answer: each(func(h *corev3.HeaderValueOption) {
				h.Header.RawValue = []byte(strings.NewReplacer("[", "", "]", "").Replace(string(h.GetHeader().GetRawValue())))
			}),
		},
		{
			name: "no header is removed", fails: []string{"steering/(gateway-headers|prefill-target|other-targets|dynamo-targets|with-body|unknown-path)"},
			answer: func(_ *distorted, a *answer) []*answer {
				if m := first(a); m != nil {
					m.RemoveHeaders = nil
				}
				return []*answer{a}
			},
		},
		{
			name: "the destination is appended", fails: []string{"steering/destination-(is-overwritten|two-lines|list|mixed-case)"},
			answer: each(func(h *corev3.HeaderValueOption) { h.AppendAction = corev3.HeaderValueOption_ADD_IF_ABSENT }),
		},
		{
			name: "the length is set", fails: []string{"steering/safe-changes"},
			answer: func(_ *distorted, a *answer) []*answer {
				if m := first(a); m != nil {
					m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: "content-length", RawValue: []byte("1")}})
				}
				return []*answer{a}
			},
		},
		{
			name: "the subset is ignored", fails: []string{"subset/.*503", "subset/(list|string)-of-one", "subset/unknown-and-known", "subset/with-body"},
			message: func(m *request) { m.MetadataContext = nil },
		},
		{
			name: "the modes are ignored", fails: []string{"modes/(buffered|partial|streamed)"},
			message: func(m *request) { m.ProtocolConfig = nil },
		},
	}
}

// TestSuiteNotices: checks fail on the faults that they are for. Without the fault,
// through the same detour, they pass.
func TestSuiteNotices(t *testing.T) {
	target := startPicker(t)
	for _, d := range distortions() {
		t.Run(d.name, func(t *testing.T) {
			only := regexp.MustCompile("^(" + strings.Join(d.fails, "|") + ")$")
			straight := target
			straight.Address = detour(t, target.Address, distortion{})
			run(t, straight, Options{Only: only})

			target := target
			target.Address, target.Endpoints = detour(t, target.Address, d), ownEndpoints()
			target.Model = OwnModel
			l, err := newLab(t.Context(), Target{Address: straight.Address, Log: target.Log}, patience)
			if err != nil {
				t.Fatal(err)
			}
			defer l.close(t.Context()) // takes the endpoints away again
			bent := &lab{target: target, timeout: 500 * time.Millisecond, fleet: l.fleet}
			if bent.conn, err = dial(target.Address, false); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = bent.conn.Close() }()
			for _, c := range Checks() {
				if !only.MatchString(c.ID) {
					continue
				}
				if r := bent.one(t.Context(), c); r.Outcome != Failed {
					t.Errorf("%s: %s %s", c.ID, r.Outcome, r.Reason)
				}
			}
		})
	}
}

// detour is a picker that passes everything on to another, with a fault.
func detour(t *testing.T, address string, d distortion, opts ...grpc.ServerOption) string {
	t.Helper()
	conn, err := dial(address, false)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(64<<20))...)
	extprocv3.RegisterExternalProcessorServer(g, &detourServer{client: extprocv3.NewExternalProcessorClient(conn), distortion: d})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	})
	return l.Addr().String()
}

type detourServer struct {
	extprocv3.UnimplementedExternalProcessorServer

	client     extprocv3.ExternalProcessorClient
	distortion distortion
}

// Process passes one stream on.
func (s *detourServer) Process(in extprocv3.ExternalProcessor_ProcessServer) error {
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	out, err := s.client.Process(ctx)
	if err != nil {
		return err
	}
	go func() { // ends when this function has: then Recv fails
		for {
			m, err := in.Recv()
			if err != nil {
				_ = out.CloseSend()
				return
			}
			if s.distortion.message != nil {
				s.distortion.message(m)
			}
			if out.Send(m) != nil {
				return
			}
		}
	}()
	var d distorted
	for {
		a, err := out.Recv()
		if err != nil {
			return nil
		}
		answers := []*answer{a}
		if s.distortion.answer != nil {
			answers = s.distortion.answer(&d, proto.Clone(a).(*answer))
		}
		for _, a := range answers {
			if err := in.Send(a); err != nil {
				return err
			}
		}
		if d.err != nil {
			return d.err
		}
	}
}
