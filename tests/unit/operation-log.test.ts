import { describe, expect, test } from "bun:test";
import type { AccountId, OperationId } from "../../src/domain/ids.ts";
import { createLog } from "../../src/log.ts";
import { OperationChanges } from "../../src/supervisor/operations/changes.ts";
import { OperationLog } from "../../src/supervisor/operations/operation-log.ts";

describe("the log of operations", () => {
  test("stores entries that name an operation, and passes all entries on", () => {
    const written: string[] = [];
    const kept = new OperationLog(() => 5);
    const base = createLog({ level: "info", format: "json", write: (line) => void written.push(line), clock: () => 0 });
    const log = kept.listenTo(base);
    log.info("listening", { url: "http://localhost" });
    log.child({ operation: "a" }).warn("odd", { status: "FAILED", reason: "x", argv: ["/secret/path"] });
    log.info("operation ended", { operation: "b", phases: { exec_ms: 3 } });
    expect(written).toHaveLength(3);
    expect(kept.lines("a")).toEqual([
      { at: 5, level: "warn", message: "odd", fields: { status: "FAILED", reason: "x" } },
    ]);
    expect(kept.lines("b")).toEqual([
      { at: 5, level: "info", message: "operation ended", fields: {}, phases: { exec_ms: 3 } },
    ]);
    expect(kept.lines("c")).toEqual([]);
  });

  test("drops the oldest operation, and limits the entries of each", () => {
    const kept = new OperationLog(() => 0);
    const log = kept.listenTo(createLog({ level: "error", format: "json", write: () => undefined }));
    for (let index = 0; index < 2001; index++) log.info("x", { operation: String(index) });
    for (let index = 0; index < 100; index++) log.info("x".repeat(5000), { operation: "2000" });
    expect(kept.lines("0")).toEqual([]);
    expect(kept.lines("1")).toHaveLength(1);
    expect(kept.lines("2000")).toHaveLength(50);
    expect(kept.lines("2000").at(-1)?.message).toHaveLength(1000);
  });

  test("keeps the entries of a running operation, and drops them like others when it has ended", () => {
    const kept = new OperationLog(() => 0);
    const log = kept.listenTo(createLog({ level: "error", format: "json", write: () => undefined }));
    const events = new OperationChanges(log);
    using _followed = kept.follow(events);
    const operation = { id: "run" as OperationId, accountId: "alice" as AccountId, kind: "instance" } as const;
    const others = (name: string) => {
      for (let index = 0; index < 2000; index++) log.info("x", { operation: `${name} ${index}` });
    };
    log.info("queued", { operation: "run" });
    events.emit({ type: "accepted", operation });
    events.emit({ type: "started", operation });
    others("before");
    log.info("running", { operation: "run" });
    others("meanwhile");
    const messages = () => kept.lines("run").map(({ message }) => message);
    expect(messages()).toEqual(["queued", "running"]);
    expect(kept.lines("before 1999")).toEqual([]);
    events.emit({ type: "ended", operation, status: "SUCCESS", error: null, phases: [] });
    log.info("ended", { operation: "run" });
    expect(messages()).toEqual(["queued", "running", "ended"]);
    others("later");
    expect(messages()).toEqual([]);
  });
});
