// A test in Node beside `replog cluster`, with what Node has: `node --test orders.test.mjs`.
// KAFKA_TEST_URL: of a cluster that is there; without, one is started.

import assert from "node:assert";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

let url = process.env.KAFKA_TEST_URL;
let cluster;

before(async () => {
  if (url) return;
  cluster = spawn("replog", ["cluster", "--brokers", "3"], { stdio: ["pipe", "pipe", "inherit"] });
  for await (const line of createInterface({ input: cluster.stdout })) {
    ({ url } = JSON.parse(line)); // `bootstrap` is for the client that is tested
    break;
  }
});

after(() => cluster?.stdin.end()); // it ends with its input

// docs/openapi.json has all verbs.
async function verb(name, body = {}) {
  const answer = await fetch(`${url}/v1/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const found = await answer.json();
  assert.equal(answer.status, 200, found?.error);
  return found;
}

test("orders outlive their leader", async () => {
  await verb("produce", { topic: "node-orders", records: ["one book"] });
  const node = await verb("leader", { topic: "node-orders", partition: 0 });
  await verb("kill", { node });
  await verb("advance", { by: "10s" });
  const records = await verb("records", { topic: "node-orders", at_least: 1 });
  assert.deepEqual(records.map((each) => each.value), ["one book"]);
  await verb("restart", { node });
});
