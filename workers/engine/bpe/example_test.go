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
		fmt.Printf("%5d %q\n", id, t.Text(id))
	}
	fmt.Printf("%q\n", t.Decode(ids))
	// Output:
	// 8190 "<|im_start|>"
	//  3924 "user"
	//    10 "\n"
	//   671 "read"
	//   261 " the"
	//   518 " file"
	//  8191 "<|im_end|>"
	// "<|im_start|>user\nread the file<|im_end|>"
}
