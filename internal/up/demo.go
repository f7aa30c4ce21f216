package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/internal/epp"
)

// turnPause is the time between two turns of the demo: far less than a reader
// takes, enough for KV events to reach the picker.
const turnPause = 500 * time.Millisecond

// shown is one request of the demo with what was predicted for it.
type shown struct {
	name   string
	answer answer
	plan   epp.PlanView
	picker int // who made the plan
}

// demo sends a long prompt, its follow-up and a different one through Envoy and
// prints where each went and why. With prefill workers it then sends several at
// once: an idle decode worker prefills faster itself than a transfer takes.
func (o Options) demo(ctx context.Context) error {
	c := client{url: "http://" + addr(o.Ports.Envoy)}
	model, err := c.firstModel(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "\nrequests to %s through Envoy:\n\n", model)
	harbour := question("harbour", "Which pump is checked first on the night shift, and by whom?")
	first, err := o.ask(ctx, c, "long prompt", model, harbour)
	if err != nil {
		return err
	}
	followUp := slices.Concat(harbour, []message{{"assistant", first.answer.text}, {"user", "And on the day shift?"}})
	second, err := o.ask(ctx, c, "follow-up", model, followUp)
	if err != nil {
		return err
	}
	third, err := o.ask(ctx, c, "another prompt", model, question("library", "Which shelf is counted first?"))
	if err != nil {
		return err
	}
	list := []shown{first, second, third}
	if o.PD {
		more, err := o.atOnce(ctx, c, model)
		if err != nil {
			return err
		}
		list = append(list, more...)
	}
	if err := o.print(list); err != nil {
		return err
	}
	if len(o.Ports.Pickers) > 1 {
		next := slices.Concat(followUp, []message{{"assistant", second.answer.text}, {"user", "And on Sundays?"}})
		if err := o.compare(ctx, model, next); err != nil {
			return err
		}
	}
	o.hint(model, second)
	return nil
}

// compare asks every replica where the conversation's next turn would go. They
// share the log, so they know the same whoever made the plans before.
func (o Options) compare(ctx context.Context, model string, messages []message) error {
	body, err := json.Marshal(chatRequest{Model: model, Messages: messages, MaxTokens: 48})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	fmt.Fprintf(o.Out, "\nThe next turn, asked of each picker (they share the log in Redis):\n\n")
	w := tabwriter.NewWriter(o.Out, 0, 0, 2, ' ', 0)
	for i, p := range o.Ports.Pickers {
		plan, err := epp.NewClient(addr(p.Admin)).Explain(ctx, "/v1/chat/completions", "", body)
		if err != nil {
			return fmt.Errorf("explain by %s: %w", pickerName(i, len(o.Ports.Pickers)), err)
		}
		fmt.Fprintf(w, "  %s\t%s\t%d of %d tokens cached\t%s\n", pickerName(i, len(o.Ports.Pickers)), o.nameOf(plan.Decode.Address),
			plan.Cached, plan.ISL, plan.Reason)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the comparison: %w", err)
	}
	return nil
}

// atOnce sends two different long prompts for each decode worker together.
func (o Options) atOnce(ctx context.Context, c client, model string) ([]shown, error) {
	list := make([]shown, 2*((o.Engines+1)/2))
	g, ctx := errgroup.WithContext(ctx)
	for i := range list {
		g.Go(func() error {
			name := fmt.Sprintf("at once %d", i+1)
			var err error
			list[i], err = o.ask(ctx, c, name, model, question(fmt.Sprintf("station %d", i+1), "Who signs for the ledger?"))
			return err
		})
	}
	return list, g.Wait()
}

func question(place, text string) []message {
	return []message{{"system", handbook(place)}, {"user", text}}
}

func (o Options) ask(ctx context.Context, c client, name, model string, messages []message) (shown, error) {
	a, err := c.chat(ctx, model, messages)
	if err != nil {
		return shown{}, fmt.Errorf("%s: %w", name, err)
	}
	pause := time.NewTimer(turnPause)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return shown{}, ctx.Err()
	case <-pause.C:
	}
	plan, picker, err := o.plan(ctx, a.id)
	if err != nil {
		return shown{}, fmt.Errorf("%s: %w", name, err)
	}
	return shown{name, a, plan, picker}, nil
}

// plan finds the replica that made a request's plan.
func (o Options) plan(ctx context.Context, id string) (epp.PlanView, int, error) {
	var faults []error
	for i, p := range o.Ports.Pickers {
		plan, err := epp.NewClient(addr(p.Admin)).Plan(ctx, id)
		if err == nil {
			return plan, i, nil
		}
		faults = append(faults, err)
	}
	return epp.PlanView{}, 0, errors.Join(faults...)
}

// print writes the table and what it shows.
func (o Options) print(list []shown) error {
	w := tabwriter.NewWriter(o.Out, 0, 0, 2, ' ', 0)
	picker, under := "", ""
	several := len(o.Ports.Pickers) > 1
	if several {
		picker, under = "\tpicker", "\t"
	}
	fmt.Fprintf(w, "  request%s\tworker\tprompt\tcached\t\tfirst token\t\treason\n", picker)
	fmt.Fprintf(w, "  %s\t\ttokens\tpredicted\treported\tpredicted\tmeasured\t\n", under)
	for _, s := range list {
		p := s.plan
		worker := o.nameOf(p.Decode.Address)
		if p.Prefill != nil {
			worker = o.nameOf(p.Prefill.Address) + " > " + worker
		}
		name := s.name
		if several {
			name += "\t" + pickerName(s.picker, len(o.Ports.Pickers))
		}
		fmt.Fprintf(w, "  %s\t%s\t%d\t%d\t%d\t%.0f ms\t%.0f ms\t%s\n", name, worker, s.answer.prompt, p.Cached, s.answer.cached,
			p.TTFTMs, ms(s.answer.first), p.Reason)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	first, second := list[0], list[1]
	if first.plan.Decode == second.plan.Decode && second.answer.cached > 0 {
		fmt.Fprintf(o.Out, "\nThe follow-up went to the worker that holds its conversation: %d of its %d prompt tokens needed no prefill.\n",
			second.answer.cached, second.answer.prompt)
	}
	return nil
}

// hint says what to try next; s is a request to explain.
func (o Options) hint(model string, s shown) {
	try := "Try it:"
	if o.Once {
		try = "Start it without --once (make up without ONCE=1), and it keeps running. Then try it:"
	}
	fmt.Fprintf(o.Out, `
%s
  curl -s http://%s/v1/chat/completions -H 'content-type: application/json' \
    -d '{"model": %q, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}'
Why a request went where it went:
  %s explain --admin %s %s
`, try, addr(o.Ports.Envoy), model, o.Binary, addr(o.Ports.Pickers[s.picker].Admin), s.answer.id)
}

// nameOf is a worker's name in the logs' folder.
func (o Options) nameOf(address string) string {
	for i, p := range o.Ports.Engines {
		if addr(p.Agent) == address {
			return fmt.Sprintf("worker-%d", i)
		}
	}
	return address
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// handbook is about six thousand tokens of plain text about a place, the same
// each time.
func handbook(place string) string {
	people := []string{"the keeper", "the first mate", "the clerk", "the apprentice", "the warden", "the night porter", "the engineer"}
	things := []string{"pump", "shelf", "gate", "lamp", "ladder", "ledger", "boat", "window", "bell"}
	acts := []string{"checks", "counts", "cleans", "locks", "repairs", "paints", "signs for"}
	times := []string{"before dawn", "after the morning bell", "at noon", "when the tide turns", "in the evening", "at midnight"}
	var b strings.Builder
	fmt.Fprintf(&b, "You answer questions about the %s from its handbook, in one short sentence.\n", place)
	for i := range 200 {
		fmt.Fprintf(&b, "%d. In the %s, %s %s %s %d %s", i+1, place, people[i%len(people)], acts[i*5%len(acts)],
			things[i*7%len(things)], i*13%97, times[i*11%len(times)])
		fmt.Fprintf(&b, " and tells %s.\n", people[(i+3)%len(people)])
	}
	return b.String()
}
