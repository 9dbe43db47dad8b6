import { afterEach, beforeEach, expect, test } from "bun:test";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { askForGc, listenForOperator } from "../../../src/api/operator/control.ts";
import { collectGarbage } from "../../../src/cli/gc/collect.ts";
import { loadConfig } from "../../../src/config/config.ts";
import { openDatabase } from "../../../src/db/database.ts";
import { silentLog } from "../../../src/log.ts";
import { type DataLayout, dataLayout } from "../../../src/storage/layout.ts";
import { type ScratchDirectory, scratchDirectory } from "../../../src/system/scratch.ts";
import { operatorCommands as commands } from "../../support/api/operator-commands.ts";
import { throwing } from "../../support/failures.ts";

let directory: ScratchDirectory;
let layout: DataLayout;
beforeEach(async () => {
  directory = await scratchDirectory(tmpdir(), "coppice-gc-");
  layout = dataLayout(directory.path);
  await layout.ensure();
  openDatabase(layout.database)[Symbol.dispose]();
});
afterEach(async () => await directory[Symbol.asyncDispose]());

const config = () => loadConfig({ environment: {}, flags: { "data-dir": directory.path }, file: undefined });

test("coppice gc asks the running daemon, also when a dead one left its socket", async () => {
  await writeFile(layout.control, "what a dead daemon left");
  const asked: boolean[] = [];
  const answer = {
    images: 3,
    layers: 0,
    layerBytes: 0,
    files: 0,
    fileBytes: 0,
    memoryImages: 1,
    memoryImageBytes: 4096,
  };
  const gc = async (dryRun: boolean) => {
    asked.push(dryRun);
    return answer;
  };
  {
    await using _daemon = await listenForOperator(layout.control, commands({ gc }), silentLog);
    expect(await collectGarbage(config(), silentLog, true)).toEqual(answer);
    expect(await askForGc(layout.control, false)).toEqual(answer);
  }
  expect(asked).toEqual([true, false]);
  expect(await askForGc(layout.control, false)).toBeNull();
});

test("coppice gc reports the daemon's error", async () => {
  const gc = () => Promise.reject(new Error("disk on fire"));
  await using _daemon = await listenForOperator(layout.control, commands({ gc }), silentLog);
  expect(await throwing(collectGarbage(config(), silentLog, false))).toThrow("disk on fire");
});
