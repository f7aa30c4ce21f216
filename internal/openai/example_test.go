package openai_test

import (
	"fmt"

	"github.com/kvlane/kvlane/internal/openai"
)

// A model's alias is replaced; everything else stays as the client wrote it.
func ExampleRequest_Splice() {
	r, err := openai.Parse(openai.APICompletions, []byte(`{"model": "alias", "prompt": "x", "seed": 9007199254740995, "z": 1.0}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", r.Splice(openai.Edit{Name: "model", Value: []byte(`"base"`)}))
	// Output: {"model": "base", "prompt": "x", "seed": 9007199254740995, "z": 1.0}
}

// Two clients that spell the same conversation differently share its chunks.
func ExampleRequest_Hashers() {
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"How long is a chunk? It is 64 bytes of the canonical stream of a prompt."}]}`,
		`{"messages": [{"content": [{"text": "How long is a chunk? It is 64 bytes of the ", "type": "text"},
			{"type": "text", "text": "c\u0061nonical stream of a prompt."}], "role": "user"}]}`,
	} {
		r, err := openai.Parse(openai.APIChat, []byte(body))
		if err != nil {
			fmt.Println(err)
			return
		}
		h := r.Hashers(r.Seed("secret of the pool", "base", ""))[0]
		fmt.Println(len(h.Chunks()), h.Len())
	}
	// Output:
	// 1 80
	// 1 80
}

// An answer is read while it is passed on, without the ids that the client did
// not ask for.
func ExampleStream() {
	s := openai.NewStream(openai.StreamOptions{Strip: true, Collect: true})
	for _, chunk := range []string{"data: {\"choices\":[{\"text\":\"hi\",\"tok", "en_ids\":[17]}]}\n\nda", "ta: [DONE]\n\n"} {
		fmt.Printf("%q\n", s.Write([]byte(chunk)))
	}
	s.Close()
	c := s.Answer().Choices[0]
	fmt.Println(c.Text, c.TokenIDs, s.Answer().Done)
	// Output:
	// ""
	// "data: {\"choices\":[{\"text\":\"hi\"}]}\n\n"
	// "data: [DONE]\n\n"
	// hi [17] true
}
