package protocol

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// destinationChecks are about the answer's address.
func destinationChecks() []Check {
	return append([]Check{
		{
			ID: "destination/header-equals-metadata", Source: FromProtocol,
			Rule: "The destination is in a request header and in the dynamic metadata envoy.lb, and both are equal.",
			run: picked(func(_ *lab, t *trace) error {
				if h, m := t.destination(), t.inMetadata(); h == "" || h != m {
					return t.fail("the same destination in header and metadata", "header %q, metadata %q", h, m)
				}
				return nil
			}),
		},
		{
			ID: "destination/header-equals-metadata-with-body", Source: FromProtocol,
			Rule: "Header and metadata are equal also for a request whose body decides.",
			run: func(ctx context.Context, l *lab) error {
				t := l.play(ctx, script(post(completionsPath), bodyMessage(l.completion(3000), true))...)
				if h, m := t.destination(), t.inMetadata(); h == "" || h != m {
					return t.fail("the same destination in header and metadata", "header %q, metadata %q; %v", h, m, t.err)
				}
				return nil
			},
		},
		{
			ID: "destination/form", Source: FromProtocol,
			Rule: "The destination is ip:port[,ip:port...], without blanks, an IPv6 address in brackets.",
			run: picked(func(_ *lab, t *trace) error {
				for _, a := range t.addresses() {
					if !isAddress(a) {
						return t.fail("ip:port[,ip:port...]", "%q", t.destination())
					}
				}
				return nil
			}),
		},
		{
			ID: "destination/is-an-endpoint", Source: FromProtocol,
			Rule: "Each address of the destination is an endpoint of the pool, with its port.",
			run: picked(func(l *lab, t *trace) error {
				for _, a := range t.addresses() {
					if !slices.Contains(l.target.Endpoints, a) {
						return t.fail("only endpoints of "+strings.Join(l.target.Endpoints, " "), "%q", a)
					}
				}
				return nil
			}),
		},
	}, destinationFormChecks()...)
}

// destinationFormChecks are about how the address is written and set.
func destinationFormChecks() []Check {
	return []Check{
		{
			ID: "destination/list-is-distinct", Source: FromProtocol,
			Rule: "No address stands twice in the list: a fallback to the endpoint that failed is none.",
			run: picked(func(_ *lab, t *trace) error {
				list := t.addresses()
				slices.Sort(list)
				if len(slices.Compact(slices.Clone(list))) != len(list) {
					return t.fail("distinct addresses", "%q", t.destination())
				}
				return nil
			}),
		},
		{
			ID: "destination/raw-value", Source: FromEnvoy,
			Rule: "Headers are set as raw_value: Envoy ignores value.",
			run: picked(func(_ *lab, t *trace) error {
				for _, m := range t.changes() {
					for _, h := range m.GetSetHeaders() {
						if h.GetHeader().GetValue() != "" {
							return t.fail("raw_value", "value in %s", h.GetHeader().GetKey())
						}
					}
				}
				return nil
			}),
		},
		{
			ID: "destination/ipv6-brackets", Source: FromProtocol, needs: []need{needIPv6},
			Rule: "An IPv6 endpoint is written [address]:port.",
			run: func(ctx context.Context, l *lab) error {
				t := l.play(ctx, get(modelsPath).within(list(l.ipv6())).message())
				if err := t.routed(); err != nil {
					return err
				}
				if got := t.destination(); got != l.ipv6() || t.inMetadata() != got {
					return t.fail(l.ipv6()+" in header and metadata", "%q and %q", got, t.inMetadata())
				}
				return nil
			},
		},
		{
			ID: "destination/spreads", Source: FromUs, needs: []need{needTwo},
			Rule: "Requests under way count at once: many at the same time do not all go to one endpoint.",
			run:  spreads,
		},
	}
}

// picked holds a rule against picks without a body.
func picked(rule func(*lab, *trace) error) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		for range 10 {
			t := l.play(ctx, get(modelsPath).message())
			if err := t.routed(); err != nil {
				return err
			}
			if err := rule(l, t); err != nil {
				return err
			}
		}
		return nil
	}
}

func spreads(ctx context.Context, l *lab) error {
	count := make(map[string]int)
	var open sessions
	defer open.stop()
	for range 8 * len(l.target.Endpoints) {
		s := l.open(ctx)
		open = append(open, s)
		m := get(modelsPath).message()
		if s.send(m) {
			s.settle(m)
		}
		if err := s.routed(); err != nil {
			return err
		}
		count[s.addresses()[0]]++
	}
	if len(count) < 2 {
		return open[len(open)-1].fail("more than one endpoint", "%v", count)
	}
	return nil
}

// subsetChecks are about the gateway's restriction of the choice.
func subsetChecks() []Check {
	refused := []int{503}
	return []Check{
		subsetCheck("absent-is-pool", FromProtocol, "Without a hint every endpoint of the pool may be picked.",
			func(*lab) (*structpb.Value, []string) { return nil, nil }, nil),
		subsetCheck("list-of-one", FromProtocol, "A list of one address leaves that one.",
			func(l *lab) (*structpb.Value, []string) { return list(l.first()), []string{l.first()} }, nil),
		subsetCheck("list-of-many", FromProtocol, "Only addresses of the list are picked, as fallbacks too.",
			func(l *lab) (*structpb.Value, []string) { return list(l.pair()...), l.pair() }, nil, needTwo),
		subsetCheck("string-of-one", FromUs, "A string is read too: Envoy's header-to-metadata filter writes strings.",
			func(l *lab) (*structpb.Value, []string) {
				return structpb.NewStringValue(l.first()), []string{l.first()}
			}, nil),
		subsetCheck("string-of-many", FromUs, "A string may join several addresses with commas, with blanks after them.",
			func(l *lab) (*structpb.Value, []string) {
				return structpb.NewStringValue(strings.Join(l.pair(), ", ")), l.pair()
			}, nil, needTwo),
		subsetCheck("unknown-and-known", FromProtocol, "Addresses that are no endpoints are passed over.",
			func(l *lab) (*structpb.Value, []string) {
				return list("198.51.100.7:8000", l.first()), []string{l.first()}
			}, nil),
		subsetCheck("twice-the-same", FromProtocol, "An address that stands twice counts once.",
			func(l *lab) (*structpb.Value, []string) { return list(l.first(), l.first()), []string{l.first()} }, nil),
		subsetCheck("empty-list-is-503", FromProtocol, "A hint that is there and empty allows nothing: 503.",
			func(*lab) (*structpb.Value, []string) { return list(), nil }, refused),
		subsetCheck("empty-string-is-503", FromUs, "An empty string allows nothing: 503.",
			func(*lab) (*structpb.Value, []string) { return structpb.NewStringValue(""), nil }, refused),
		subsetCheck("unknown-is-503", FromProtocol, "A hint without an endpoint of the pool is answered with 503.",
			func(*lab) (*structpb.Value, []string) { return list("198.51.100.7:8000"), nil }, refused),
		subsetCheck("port-counts", FromProtocol, "Address and port must match: an endpoint's address with another port is 503.",
			func(l *lab) (*structpb.Value, []string) { return list(l.otherPort()), nil }, refused),
		subsetCheck("odd-types-are-503", FromUs, "A hint that is a number, a flag, null or a structure never opens the whole pool: 503.",
			nil, refused),
		{
			ID: "subset/key-absent-is-pool", Source: FromProtocol,
			Rule: "The hint's namespace without its key is no hint.",
			run: func(ctx context.Context, l *lab) error {
				o := get(modelsPath)
				o.metadata = metadataOf(subsetNamespace, "another-key", structpb.NewStringValue("198.51.100.7:8000"))
				return l.play(ctx, o.message()).routed()
			},
		},
		{
			ID: "subset/with-body", Source: FromProtocol,
			Rule: "A hint that came with the headers holds when the body decides.",
			run: func(ctx context.Context, l *lab) error {
				o := post(completionsPath).within(list(l.first()))
				return l.play(ctx, script(o, cut(l.completion(2000), 500)...)...).goesTo(l.first())
			},
		},
		{
			ID: "subset/empty-with-body-is-503", Source: FromProtocol,
			Rule: "An empty hint refuses a request with a body too.",
			run: func(ctx context.Context, l *lab) error {
				o := post(completionsPath).within(list())
				return l.play(ctx, script(o, cut(l.completion(2000), 500)...)...).refused(503)
			},
		},
		{
			ID: "subset/header-is-no-hint", Source: FromUs,
			Rule: "A header of the hint's name, sent by a client, restricts nothing.",
			run: func(ctx context.Context, l *lab) error {
				return l.play(ctx, get(modelsPath, subsetKey, "198.51.100.7:8000").message()).routed()
			},
		},
	}
}

// subsetCheck asks some times with a hint, and wants picks among allowed, or a
// status. A nil hint function stands for the odd types.
func subsetCheck(name string, source Source, rule string, hint func(*lab) (*structpb.Value, []string), refusal []int, needs ...need) Check {
	return Check{ID: "subset/" + name, Rule: rule, Source: source, needs: needs, run: func(ctx context.Context, l *lab) error {
		if hint == nil {
			return l.oddSubsets(ctx, refusal)
		}
		for range 10 {
			v, allowed := hint(l)
			t := l.play(ctx, get(modelsPath).within(v).message())
			err := t.goesTo(allowed...)
			if refusal != nil {
				err = t.refused(refusal...)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}}
}

func (l *lab) oddSubsets(ctx context.Context, refusal []int) error {
	for _, v := range []*structpb.Value{
		structpb.NewNumberValue(8000), structpb.NewBoolValue(true), structpb.NewNullValue(),
		structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewStringValue(l.first())}}),
		structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewNumberValue(1)}}),
		structpb.NewStringValue("not an address"),
	} {
		if err := l.play(ctx, get(modelsPath).within(v).message()).refused(refusal...); err != nil {
			return fmt.Errorf("hint %s: %w", v, err)
		}
	}
	return nil
}

// goesTo wants a pick whose addresses are all among the allowed ones; none for any.
func (t *trace) goesTo(allowed ...string) error {
	if err := t.picked(); err != nil {
		return err
	}
	for _, a := range t.addresses() {
		if len(allowed) > 0 && !slices.Contains(allowed, a) {
			return t.fail("only "+strings.Join(allowed, " "), "%q", t.destination())
		}
	}
	return nil
}

func (l *lab) first() string { return l.target.Endpoints[0] }

// pair is all endpoints but one, at least two where there are two.
func (l *lab) pair() []string {
	n := len(l.target.Endpoints)
	return l.target.Endpoints[max(0, min(1, n-2)):]
}

// otherPort is the first endpoint's address with a port that no endpoint has.
func (l *lab) otherPort() string {
	host := l.first()[:strings.LastIndexByte(l.first(), ':')]
	for port := 9999; ; port++ {
		if a := fmt.Sprintf("%s:%d", host, port); !slices.Contains(l.target.Endpoints, a) {
			return a
		}
	}
}
