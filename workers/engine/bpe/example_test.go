package bpe_test

import (
	"fmt"

	"github.com/kvlane/kvlane/workers/engine/bpe"
)

func Example() {
	t, err := bpe.Load()
	if err != nil {
		fmt.Println(err)
		return
	}
	ids := t.EncodeSpecial("<|im_start|>user\nread the file<|im_end|>")
	for _, id := range ids {
		fmt.Printf("%q ", t.Text(id))
	}
	fmt.Println()
	fmt.Printf("%q\n", t.Decode(ids))
	// Output:
	// "<|im_start|>" "user" "\n" "read" " the" " file" "<|im_end|>"
	// "<|im_start|>user\nread the file<|im_end|>"
}
