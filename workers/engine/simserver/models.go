package simserver

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
)

// maxAdapters is what vllm:lora_requests_info gives as max_lora. The simulated
// engine has no limit of its own; vLLM's default is 1, deployments raise it.
const maxAdapters = 16

// adapter is a loaded LoRA.
type adapter struct{ name, path string }

// models are the names that requests may use. It is safe for concurrent use.
type models struct {
	base string
	// served are the base model's names, the first the one that answers carry.
	served []string

	mu     sync.Mutex
	loaded []adapter
}

func (m *models) adapters() []adapter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.loaded)
}

// resolve finds what a request names: the answer's model and the adapter, if
// it is one. As in vLLM no name is the base model, and an alias is answered
// under the first name.
func (m *models) resolve(name string) (model, lora string, err error) {
	if name == "" || slices.Contains(m.served, name) {
		return m.served[0], "", nil
	}
	for _, a := range m.adapters() {
		if a.name == name {
			return name, name, nil
		}
	}
	return "", "", &apiError{
		Status: http.StatusNotFound, Type: "NotFoundError", Param: "model",
		Message: fmt.Sprintf("The model `%.200s` does not exist.", name),
	}
}

func (m *models) load(name, path string, inPlace bool) error {
	bad := func(format string, a ...any) error {
		return &apiError{Status: http.StatusBadRequest, Type: "InvalidUserInput", Message: fmt.Sprintf(format, a...)}
	}
	if name == "" || path == "" {
		return bad("Both 'lora_name' and 'lora_path' must be provided.")
	}
	if slices.Contains(m.served, name) {
		return bad("The lora adapter '%s' conflicts with a served base model.", name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.loaded, func(a adapter) bool { return a.name == name })
	switch {
	case i >= 0 && !inPlace:
		return bad("The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.", name)
	case i >= 0:
		m.loaded[i].path = path
	default:
		m.loaded = append(m.loaded, adapter{name, path})
	}
	return nil
}

func (m *models) unload(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.loaded, func(a adapter) bool { return a.name == name })
	if i < 0 {
		return &apiError{
			Status: http.StatusNotFound, Type: "NotFoundError",
			Message: fmt.Sprintf("The lora adapter '%.200s' cannot be found.", name),
		}
	}
	m.loaded = slices.Delete(m.loaded, i, i+1)
	return nil
}

// modelCard is one entry of /v1/models.
type modelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen *int    `json:"max_model_len"`
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelCard `json:"data"`
}

func (s *Server) listModels(w http.ResponseWriter, _ *http.Request) error {
	list := modelList{Object: "list"}
	for _, name := range s.models.served {
		list.Data = append(list.Data, modelCard{
			ID: name, Object: "model", Created: s.started, OwnedBy: "vllm", Root: s.models.base, MaxModelLen: &s.cfg.MaxModelLen,
		})
	}
	for _, a := range s.models.adapters() {
		list.Data = append(list.Data, modelCard{
			ID: a.name, Object: "model", Created: s.started, OwnedBy: "vllm", Root: a.path, Parent: &s.models.served[0],
		})
	}
	return writeJSON(w, http.StatusOK, list)
}

type adapterRequest struct {
	Name    string `json:"lora_name"`
	Path    string `json:"lora_path"`
	InPlace bool   `json:"load_inplace"`
}

func (s *Server) loadAdapter(w http.ResponseWriter, r *http.Request) error {
	var in adapterRequest
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	if err := s.models.load(in.Name, in.Path, in.InPlace); err != nil {
		return err
	}
	return writeText(w, fmt.Sprintf("Success: LoRA adapter '%s' added successfully.", in.Name))
}

func (s *Server) unloadAdapter(w http.ResponseWriter, r *http.Request) error {
	var in adapterRequest
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	if err := s.models.unload(in.Name); err != nil {
		return err
	}
	return writeText(w, fmt.Sprintf("Success: LoRA adapter '%s' removed successfully.", in.Name))
}
