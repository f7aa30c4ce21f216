package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/test/sim"
)

func newSimPrefixesCommand() *cobra.Command {
	plan, seeds := sim.DefaultTexts(), sim.PrefixSeeds
	cmd := &cobra.Command{
		Use:   "prefixes",
		Short: "Compare prefixes learned from texts with exact tokenization",
		Long: `Make conversations over shared system prompts, from clients that write JSON
differently, and route them by prefixes learned as in production and by exact
tokens: what both predict to be cached, and what clients would see of a fleet of
four workers.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := sim.ComparePrefixes(cmd.Context(), plan, seeds)
			if err != nil {
				return err
			}
			return p.Print(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&seeds, "seeds", seeds, "workloads, at least 1")
	flags.IntVar(&plan.Systems, "systems", plan.Systems, "shared system prompts")
	flags.IntVar(&plan.SystemTokens, "system-tokens", plan.SystemTokens, "their length, about")
	flags.IntVar(&plan.Chats, "chats", plan.Chats, "conversations in a workload")
	flags.IntVar(&plan.Turns, "turns", plan.Turns, "turns of the longest one")
	flags.IntVar(&plan.Styles, "styles", plan.Styles, fmt.Sprintf("kinds of clients, 1 to %d", sim.TextStyles))
	flags.IntVar(&plan.BlockSize, "block-size", plan.BlockSize, "tokens of a block")
	flags.Float64Var(&plan.ChatsPerSecond, "rate", plan.ChatsPerSecond, "conversations that begin in a second")
	return cmd
}
