package simserver_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/kvlane/kvlane/workers/engine/simserver"
)

func Example() {
	cfg := simserver.Default()
	cfg.Listen = "127.0.0.1:0"
	cfg.Speed = 100
	engine, err := simserver.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- engine.Run(ctx) }()
	<-engine.Ready()

	resp, err := http.Post("http://"+engine.Addr()+"/tokenize", "application/json", strings.NewReader(`{"prompt":"Hello"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	body, err := io.ReadAll(resp.Body)
	fmt.Println(string(body), err, resp.Body.Close())
	stop()
	fmt.Println(<-done)
	// Output:
	// {"count":1,"max_model_len":131072,"tokens":[3943],"token_strs":null} <nil> <nil>
	// <nil>
}
