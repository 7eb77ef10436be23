// Transactions by franz-go against one broker. Commands:
//
//	produce BOOTSTRAP ID TOPIC VALUE,VALUE:commit VALUE:abort ..
//	copy BOOTSTRAP ID GROUP SOURCE TARGET COUNT
//	read BOOTSTRAP TOPIC COUNT
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	log.SetFlags(0)
	waiting, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	words := os.Args[2:]
	bootstrap := kgo.SeedBrokers(strings.Split(words[0], ",")...)
	switch os.Args[1] {
	case "produce":
		produce(waiting, bootstrap, words[1], words[2], words[3:])
	case "copy":
		copyAll(waiting, bootstrap, words[1], words[2], words[3], words[4], number(words[5]))
	case "read":
		read(waiting, bootstrap, words[1], number(words[2]))
	}
}

func number(word string) int {
	found, err := strconv.Atoi(word)
	check(err)
	return found
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func produce(waiting context.Context, bootstrap kgo.Opt, id, topic string, rounds []string) {
	client, err := kgo.NewClient(bootstrap, kgo.TransactionalID(id), kgo.DefaultProduceTopic(topic))
	check(err)
	defer client.Close()
	for _, round := range rounds {
		values, end, _ := strings.Cut(round, ":")
		check(client.BeginTransaction())
		for _, value := range strings.Split(values, ",") {
			client.Produce(waiting, kgo.StringRecord(value), func(_ *kgo.Record, err error) { check(err) })
		}
		check(client.Flush(waiting))
		check(client.EndTransaction(waiting, kgo.TransactionEndTry(end == "commit")))
	}
}

func copyAll(waiting context.Context, bootstrap kgo.Opt, id, group, source, target string, count int) {
	session, err := kgo.NewGroupTransactSession(
		bootstrap,
		kgo.TransactionalID(id),
		kgo.DefaultProduceTopic(target),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(source),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RequireStableFetchOffsets(),
	)
	check(err)
	defer session.Close()
	for copied := 0; copied < count; {
		fetched := session.PollRecords(waiting, 7)
		for _, failed := range fetched.Errors() {
			log.Fatal(failed.Err)
		}
		if fetched.NumRecords() == 0 {
			continue
		}
		check(session.Begin())
		fetched.EachRecord(func(record *kgo.Record) {
			session.Produce(waiting, kgo.SliceRecord(bytes.ToUpper(record.Value)),
				func(_ *kgo.Record, err error) { check(err) })
		})
		committed, err := session.End(waiting, kgo.TryCommit)
		check(err)
		if committed {
			copied += fetched.NumRecords()
		}
	}
}

func read(waiting context.Context, bootstrap kgo.Opt, topic string, count int) {
	client, err := kgo.NewClient(
		bootstrap,
		kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	check(err)
	defer client.Close()
	for found := 0; found < count; {
		fetched := client.PollFetches(waiting)
		for _, failed := range fetched.Errors() {
			log.Fatal(failed.Err)
		}
		fetched.EachRecord(func(record *kgo.Record) {
			fmt.Println(string(record.Value))
			found++
		})
	}
}
