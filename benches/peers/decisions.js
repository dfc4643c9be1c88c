// rate-limiter-flexible: decisions that are all admitted.
// Arguments: one-key or many-keys, URL, callers, seconds, plain or auto-pipelining. Or: check.
"use strict";
const { RateLimiterRedis } = require("rate-limiter-flexible");
const { Redis } = require("ioredis");

const KEYS = 100000;
const WARM_UP = 16;

async function main([task, url, callers, seconds, setting]) {
  const client = new Redis(url, { enableAutoPipelining: setting === "auto-pipelining" });
  const limiter = new RateLimiterRedis({ storeClient: client, points: 1e9, duration: 3600 });
  // Keys of 20 bytes.
  const names = Array.from({ length: KEYS }, (_, key) => "key-" + String(key).padStart(16, "0"));
  const key = () => names[task === "one-key" ? 0 : Math.floor(Math.random() * KEYS)];
  const all = (work) => Promise.all(Array.from({ length: Number(callers) }, work));

  // It rejects where a request is refused or Redis fails: then this program fails.
  await all(async () => {
    for (let call = 0; call < WARM_UP; call++) await limiter.consume(key(), 1);
  });
  console.log("ready");
  await new Promise((resolve) => process.stdin.once("data", resolve));
  const began = process.hrtime.bigint();
  const end = began + BigInt(Math.round(Number(seconds) * 1e9));
  const decisions = await all(async () => {
    let count = 0;
    while (process.hrtime.bigint() < end) {
      await limiter.consume(key(), 1);
      count++;
    }
    return count;
  });
  console.log(decisions.reduce((sum, count) => sum + count, 0), String(process.hrtime.bigint() - began));
  process.exit(0);
}

if (process.argv[2] !== "check") {
  main(process.argv.slice(2)).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
