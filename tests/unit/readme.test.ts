import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { COMMANDS } from "../../src/cli/command-line.ts";
import { shownSize } from "../../src/cli/table.ts";
import { keyNames } from "../../src/config/config.ts";
import { KEYS, shownDefault } from "../../src/config/keys.ts";
import { GUEST_NAME_BYTES_MAX, GUEST_PATH_BYTES_MAX } from "../../src/domain/guest-path.ts";
import { IMPORT_TIMEOUT_SECONDS_DEFAULT, IMPORT_TIMEOUT_SECONDS_MAX } from "../../src/domain/image.ts";
import {
  ARGUMENT_BYTES_MAX,
  FILES_COUNT_MAX,
  STDIN_BYTES_MAX,
  TIMEOUT_SECONDS_DEFAULT,
} from "../../src/domain/instance.ts";
import { LIMIT_DEFAULT, LIMIT_MAX } from "../../src/domain/listing.ts";
import { OUTPUT_BYTES_DEFAULT, OUTPUT_BYTES_MAX } from "../../src/domain/output.ts";
import { EROFS_ENTRIES_MAX, EXT4_DIRECTORY_ENTRIES_MAX } from "../../src/oci/base-disk.ts";
import { IMAGE_LAYERS_COUNT_MAX } from "../../src/oci/manifest.ts";
import { INDEX_ENTRIES_COUNT_MAX } from "../../src/storage/limits.ts";
import { TOOLS_MEMORY_BYTES } from "../../src/supervisor/imports/import-bounds.ts";
import { CAPTURE_MS } from "../../src/supervisor/instance/guest-budgets.ts";
import { WAITING_BYTES_MAX, WAITING_COUNT_MAX } from "../../src/supervisor/operations/waiting-room.ts";
import { LAYERS_COUNT_MAX } from "../../src/vm/agent/protocol.ts";
import { OVERHEAD_BYTES, TEMPLATES_BYTES_MAX, TEMPLATES_BYTES_MIN } from "../../src/vm/machine-memory.ts";

const ROOT = join(import.meta.dir, "../..");
const readme = readFileSync(join(ROOT, "README.md"), "utf8");
const size = (bytes: number): string => shownSize(bytes).replace(".0", "");

/** Rows of the table below a heading. */
function rowsOf(heading: string): string[] {
  const section = readme.split(`\n## ${heading}\n`)[1]?.split("\n## ")[0] ?? "";
  return section
    .split("\n")
    .filter((line) => line.startsWith("| ") && !/^\| (setting|what|request|ring) \|/.test(line));
}

test("the settings are the settings of the code", () => {
  const rows = keyNames().map((name) => `| \`${name}\` | ${shownDefault(name)} | ${KEYS[name].doc} |`);
  expect(rowsOf("Configuration")).toEqual(rows);
});

test("the limits are the limits of the code", () => {
  const seconds = `${TIMEOUT_SECONDS_DEFAULT} s, at most what \`limits.instance_timeout_max\` says`;
  const configured = "what `limits.image_bytes_max` and `limits.image_entries_max` say";
  const directory = `${EXT4_DIRECTORY_ENTRIES_MAX} entries beside a name of 255 bytes, or where the image has more than ${EROFS_ENTRIES_MAX}`;
  const waiting = `${WAITING_COUNT_MAX}, and ${size(WAITING_BYTES_MAX)} of requests`;
  const gib = (bytes: number): string => `${bytes / 1024 ** 3} GiB`;
  const templates = `an eighth of it, at least ${size(TEMPLATES_BYTES_MIN)}, at most ${gib(TEMPLATES_BYTES_MAX)}`;
  expect(rowsOf("Limits")).toEqual([
    `| time of a run | ${seconds} |`,
    `| time after the command, for keeping its files | ${CAPTURE_MS / 1000} s and what so many bytes and files take |`,
    `| time of an import | ${IMPORT_TIMEOUT_SECONDS_DEFAULT} s, at most ${IMPORT_TIMEOUT_SECONDS_MAX} s |`,
    `| kept of each output stream | ${size(OUTPUT_BYTES_DEFAULT)}, at most ${size(OUTPUT_BYTES_MAX)} |`,
    `| standard input | ${size(STDIN_BYTES_MAX)} |`,
    `| operations of an account that wait | ${waiting}; more are refused with 429 |`,
    `| one argument or variable | ${ARGUMENT_BYTES_MAX} bytes |`,
    `| input files of a run | ${FILES_COUNT_MAX} |`,
    `| a path in an image | ${GUEST_PATH_BYTES_MAX} bytes, each name ${GUEST_NAME_BYTES_MAX} |`,
    `| bytes and files of an imported image | ${configured}; ${IMAGE_LAYERS_COUNT_MAX} layers |`,
    `| a directory of an imported image | ${directory} |`,
    `| memory of the programs of an import | ${gib(TOOLS_MEMORY_BYTES)}, at most half of the memory budget, or what a VM takes |`,
    `| memory that a VM takes of the budget | its own, rounded up to a power of two, a 32nd of that, and ${size(OVERHEAD_BYTES)} |`,
    `| memory of templates, beside the budget | ${templates}; one template beyond |`,
    `| entries of one layer | ${INDEX_ENTRIES_COUNT_MAX} |`,
    `| disks of one run | ${LAYERS_COUNT_MAX}; longer chains of layers are merged first |`,
    `| entries of a listing page | ${LIMIT_DEFAULT}, at most ${LIMIT_MAX} |`,
  ]);
});

test("every command that is shown exists", () => {
  const shown = [...readme.matchAll(/(?:dist\/|\s|`)coppice ((?:[a-z]+ )?[a-z]+)/g)].map(([, words = ""]) => words);
  const names = new Set(COMMANDS.flatMap(({ name }) => [name, name.split(" ")[0] ?? ""]));
  const unknown = shown.filter((words) => !names.has(words) && !names.has(words.split(" ")[0] ?? ""));
  expect(shown.length).toBeGreaterThan(5);
  expect(unknown.filter((words) => !/^(is|keeps|runs)\b/.test(words))).toEqual([]);
});

test("every file, folder and target that is named exists", () => {
  const makefile = readFileSync(join(ROOT, "Makefile"), "utf8");
  const targets = [...readme.matchAll(/`make ([a-z-]+)`/g)].map(([, target = ""]) => target);
  expect(targets.filter((target) => !new RegExp(`^${target}:`, "m").test(makefile))).toEqual([]);
  const paths = [...readme.matchAll(/`((?:src|tests|vm-assets|systemd)(?:\/[\w.-]+)*)`/g)].map(([, path = ""]) => path);
  expect(paths.filter((path) => !existsSync(join(ROOT, path)))).toEqual([]);
});
