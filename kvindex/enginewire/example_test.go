package enginewire_test

import (
	"fmt"

	"github.com/kvlane/kvlane/kvindex/enginewire"
)

func Example() {
	payload := enginewire.Encode(enginewire.Batch{
		Time: 1700000000,
		Events: []enginewire.Event{{
			Kind: enginewire.Stored, Hashes: []enginewire.Hash{enginewire.IntHash(7)}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 4,
		}},
	}, enginewire.Map)

	// What comes from the socket:
	msg, err := enginewire.ParseLive([][]byte{[]byte("kv@192.0.2.10:8000@base"), enginewire.Seq(0), payload})
	if err != nil {
		fmt.Println(err)
		return
	}
	batch, err := enginewire.Decode(msg.Payload)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range batch.Events {
		fmt.Println(msg.Topic, msg.Seq, e.Kind, e.Hashes, e.Tokens, e.Tier)
	}
	// Output: kv@192.0.2.10:8000@base 0 BlockStored [0000000000000007] [1 2 3 4] device
}
