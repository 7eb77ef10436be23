// A test in Go beside `replog cluster`, with what Go has: `go test orders_test.go`.
// KAFKA_TEST_URL: of a cluster that is there; without, one is started.
package orders

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"testing"
)

var url = os.Getenv("KAFKA_TEST_URL")

func TestMain(m *testing.M) {
	if url != "" {
		os.Exit(m.Run())
	}
	cluster := exec.Command("replog", "cluster", "--brokers", "3")
	input, _ := cluster.StdinPipe() // it ends with its input, also when this process is killed
	output, _ := cluster.StdoutPipe()
	if err := cluster.Start(); err != nil {
		panic(err)
	}
	line, _ := bufio.NewReader(output).ReadBytes('\n')
	where := struct{ Url, Bootstrap string }{} // Bootstrap is for the client that is tested
	if err := json.Unmarshal(line, &where); err != nil {
		panic(err)
	}
	url = where.Url
	code := m.Run()
	input.Close()
	cluster.Wait()
	os.Exit(code)
}

// docs/openapi.json has all verbs.
func verb(t *testing.T, name string, body map[string]any, found any) {
	t.Helper()
	content, _ := json.Marshal(body)
	answer, err := http.Post(url+"/v1/"+name, "application/json", bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 {
		refusal := map[string]string{}
		json.NewDecoder(answer.Body).Decode(&refusal)
		t.Fatalf("%s: %s", name, refusal["error"])
	}
	if found != nil {
		if err := json.NewDecoder(answer.Body).Decode(found); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOrdersOutliveTheirLeader(t *testing.T) {
	verb(t, "produce", map[string]any{"topic": "go-orders", "records": []string{"one book"}}, nil)
	var node int
	verb(t, "leader", map[string]any{"topic": "go-orders", "partition": 0}, &node)
	verb(t, "kill", map[string]any{"node": node}, nil)
	verb(t, "advance", map[string]any{"by": "10s"}, nil)
	var records []struct{ Value string }
	verb(t, "records", map[string]any{"topic": "go-orders", "at_least": 1}, &records)
	if len(records) != 1 || records[0].Value != "one book" {
		t.Fatalf("found %v", records)
	}
	verb(t, "restart", map[string]any{"node": node}, nil)
}
