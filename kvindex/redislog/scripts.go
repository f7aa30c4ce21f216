package redislog

import (
	_ "embed" // the scripts

	"github.com/redis/go-redis/v9"
)

//go:embed lua/common.lua
var commonLua string

//go:embed lua/append.lua
var appendLua string

//go:embed lua/checkpoint.lua
var checkpointLua string

//go:embed lua/beat.lua
var beatLua string

//go:embed lua/drop.lua
var dropLua string

//go:embed lua/void.lua
var voidLua string

// scripts are run by their hash; a server that does not know one is sent its text.
type scripts struct {
	append, checkpoint, beat, drop, void *redis.Script
}

func newScripts() scripts {
	s := func(text string) *redis.Script { return redis.NewScript(commonLua + text) }
	return scripts{
		append: s(appendLua), checkpoint: s(checkpointLua), beat: s(beatLua), drop: s(dropLua), void: s(voidLua),
	}
}
