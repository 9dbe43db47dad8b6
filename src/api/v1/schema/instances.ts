import { type Static, Type } from "@sinclair/typebox";
import {
  CHECKPOINT_TIMEOUT_SECONDS_DEFAULT,
  CHECKPOINT_TIMEOUT_SECONDS_MAX,
  CWD_DEFAULT,
  ENV_COUNT_MAX,
  FILE_MODE_DEFAULT,
  TIMEOUT_SECONDS_DEFAULT,
} from "../../../domain/instance.ts";
import { MEMORY_FORK_COUNT_MAX } from "../../../domain/memory-fork.ts";
import { OUTPUT_BYTES_DEFAULT, OUTPUT_BYTES_MAX } from "../../../domain/output.ts";
import { ANY_KEY, HOSTNAME_PATTERN, OWNER_MAX } from "../../wire-fields.ts";
import { Timestamp, Uuid } from "./common.ts";
import { MEMORY_FORK_FIELDS } from "./forks.ts";
import { Tag } from "./images.ts";
import { NetworkChangeField, NetworkField } from "./network.ts";

/** Largest number of rows and of columns of a terminal. */
const TERMINAL_SIZE_MAX = 65_535;

function ownerField(name: "uid" | "gid", description: string) {
  return Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: OWNER_MAX,
      default: 0,
      description,
      error: `${name} must be an integer from 0 to ${OWNER_MAX}`,
    }),
  );
}

const terminalSide = (name: "rows" | "cols", description: string) =>
  Type.Integer({
    minimum: 1,
    maximum: TERMINAL_SIZE_MAX,
    description,
    error: `${name} must be an integer from 1 to ${TERMINAL_SIZE_MAX}`,
  });

export const PtySize = Type.Object(
  { rows: terminalSide("rows", "lines of the terminal"), cols: terminalSide("cols", "characters of a line") },
  { description: "a terminal of this size for all three streams", error: "pty must be an object with rows and cols" },
);
export type PtySize = Static<typeof PtySize>;

export const InstanceFile = Type.Object(
  {
    uuid: Uuid,
    mode: Type.Optional(
      Type.String({
        pattern: "^[0-7]{4}$",
        default: FILE_MODE_DEFAULT,
        description: "octal permissions, four digits",
        error: "mode must be four octal digits",
      }),
    ),
    uid: ownerField("uid", "user id of the owner"),
    gid: ownerField("gid", "group id of the owner"),
  },
  { error: "a file must be an object with uuid (a file UUID) and, optionally, mode (four octal digits), uid and gid" },
);

export type InstanceFile = Static<typeof InstanceFile>;

/** Resources of an instance, which are rounded up to the next template shape. */
export const Resources = Type.Object({
  vcpus: Type.Optional(Type.Integer({ minimum: 1, error: "vcpus must be an integer of at least 1" })),
  memory_bytes: Type.Optional(Type.Integer({ minimum: 1, error: "memory_bytes must be a positive integer" })),
  disk_bytes: Type.Optional(Type.Integer({ minimum: 1, error: "disk_bytes must be a positive integer" })),
});
export type Resources = Static<typeof Resources>;

/** Fields of all commands: the command of an instance, and additional processes. */
export const COMMAND_FIELDS = {
  command: Type.String({
    minLength: 1,
    description: "executable (looked up in PATH), or a shell expression when shell is true",
    error: "command must be a string of at least one character",
  }),
  args: Type.Optional(
    Type.Array(Type.String(), { description: "arguments of the command", error: "args must be an array of strings" }),
  ),
  shell: Type.Optional(
    Type.Boolean({ default: false, description: "run the command by /bin/sh -c", error: "shell must be a boolean" }),
  ),
  env: Type.Optional(
    Type.Record(ANY_KEY, Type.String({ error: "env must be an object of strings" }), {
      description: `environment variables, at most ${ENV_COUNT_MAX}`,
      error: "env must be an object of strings",
    }),
  ),
  cwd: Type.Optional(
    Type.String({ default: CWD_DEFAULT, description: "working directory, absolute", error: "cwd must be a string" }),
  ),
  uid: ownerField("uid", "user id of the command"),
  gid: ownerField("gid", "group id of the command"),
  stdin: Type.Optional(
    Type.String({
      description: "plain ASCII, or base64: followed by standard base64",
      error: "stdin must be a string",
    }),
  ),
  stdin_open: Type.Optional(
    Type.Boolean({
      default: false,
      description: "keep standard input open after the bytes of stdin, so that more can be written",
      error: "stdin_open must be a boolean",
    }),
  ),
  pty: Type.Optional(PtySize),
  truncate_output_at: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: OUTPUT_BYTES_MAX,
      default: OUTPUT_BYTES_DEFAULT,
      description: "largest number of bytes to capture of each output stream",
      error: `truncate_output_at must be an integer from 0 to ${OUTPUT_BYTES_MAX}`,
    }),
  ),
};

const CommandFields = Type.Object(COMMAND_FIELDS);
export type CommandFields = Static<typeof CommandFields>;

export const SpawnRequest = Type.Object({
  image: Type.String({
    description: "image UUID, or tag:<tag_name>",
    examples: ["tag:busybox"],
    error: "image must be an image UUID or tag:<name>",
  }),
  ...COMMAND_FIELDS,
  timeout: Type.Optional(
    Type.Integer({
      minimum: 1,
      default: TIMEOUT_SECONDS_DEFAULT,
      description: "maximum execution time, in seconds",
      error: "timeout must be a positive integer",
    }),
  ),
  files: Type.Optional(
    Type.Record(ANY_KEY, InstanceFile, {
      description: "input files, by absolute path in the sandbox",
      error: "files must be an object of {uuid, mode} by absolute path",
    }),
  ),
  hostname: Type.Optional(
    Type.String({
      pattern: HOSTNAME_PATTERN,
      description: "host name of the sandbox",
      error: "hostname must be 1 to 64 letters, digits, dots and hyphens, and begin and end with a letter or digit",
    }),
  ),
  disposable: Type.Optional(
    Type.Boolean({
      default: false,
      description: "discard the file system after the run",
      error: "disposable must be a boolean",
    }),
  ),
  tag: Type.Optional(Tag),
  resources: Type.Optional(Resources),
  network: Type.Optional(NetworkField),
});
export type SpawnRequest = Static<typeof SpawnRequest>;

/** A time limit that replaces the one of the request. */
/** The fields of a running instance that can change. */
export const InstanceChange = Type.Object({
  timeout: Type.Optional(
    Type.Integer({
      minimum: 1,
      description: "maximum execution time from the command's start, in seconds; not shorter than the current one",
      error: "timeout must be a positive integer",
    }),
  ),
  network: Type.Optional(NetworkChangeField),
});

export const ChangedInstance = Type.Object({
  uuid: Uuid,
  timeout: Type.Optional(Type.Integer({ description: "in seconds; present when it was changed" })),
  network: Type.Optional(NetworkChangeField),
});

export const SpawnedInstance = Type.Object({ uuid: Uuid });

/** Request to make an image of the files of a running instance. */
export const CheckpointRequest = Type.Object({
  tag: Type.Optional(Tag),
  timeout: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: CHECKPOINT_TIMEOUT_SECONDS_MAX,
      default: CHECKPOINT_TIMEOUT_SECONDS_DEFAULT,
      description: "time limit of the checkpoint, in seconds",
      error: `timeout must be an integer from 1 to ${CHECKPOINT_TIMEOUT_SECONDS_MAX}`,
    }),
  ),
});
export type CheckpointRequest = Static<typeof CheckpointRequest>;

/** Request to copy a running instance with its memory. */
export const InstanceForkRequest = Type.Object({
  count: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MEMORY_FORK_COUNT_MAX,
      default: 1,
      description: "number of copies",
      error: `count must be an integer from 1 to ${MEMORY_FORK_COUNT_MAX}`,
    }),
  ),
  signal: Type.Optional(
    Type.String({
      description: "signal for the processes of each copy, which tells them of it, such as USR1; by default none",
      error: "signal must be a string",
    }),
  ),
  timeout: Type.Optional(
    Type.Integer({
      minimum: 1,
      description: "maximum execution time from now, in seconds; what is left of the parent's by default",
      error: "timeout must be a positive integer",
    }),
  ),
  disposable: Type.Optional(
    Type.Boolean({
      description: "discard the file system after the run; as the parent by default",
      error: "disposable must be a boolean",
    }),
  ),
  stdin_open: Type.Optional(
    Type.Boolean({
      default: false,
      description: "keep standard input open where it was, so that more can be written; otherwise it ends",
      error: "stdin_open must be a boolean",
    }),
  ),
});
export type InstanceForkRequest = Static<typeof InstanceForkRequest>;

/** The copies of an instance. */
export const InstanceFork = Type.Object({
  ...MEMORY_FORK_FIELDS,
  instances: Type.Array(
    Type.Object({ uuid: Uuid, index: Type.Integer({ description: "number of the copy, from 1" }) }),
  ),
});

/** A sample of a running instance. */
export const InstanceStatsSchema = Type.Object({
  cpu_time_ms: Type.Integer({ description: "CPU time of the virtual machine so far, in milliseconds" }),
  cpu_percent: Type.Number({ description: "share of one CPU since the previous sample; 200 is two CPUs" }),
  memory_bytes: Type.Integer({ description: "memory of the virtual machine now" }),
  memory_peak_bytes: Type.Integer({ description: "highest memory of the virtual machine so far" }),
  pids: Type.Integer({ description: "threads of the virtual machine on the host" }),
  at: Timestamp,
});
