import { type Static, type TSchema, Type } from "@sinclair/typebox";
import { MEMORY_FORK_COUNT_MAX } from "../../../domain/memory-fork.ts";
import {
  FORK_COUNT_MAX,
  HEAD_DISTANCE_MAX,
  METADATA_COUNT_MAX,
  METADATA_KEY_LENGTH_MAX,
  METADATA_VALUE_LENGTH_MAX,
  PUBLIC_PORTS_COUNT_MAX,
  SANDBOX_NAME_PATTERN,
  SANDBOX_STATES,
  SANDBOX_TIMEOUT_SECONDS_DEFAULT,
  SANDBOX_TIMEOUT_SECONDS_MAX,
  SAVE_REASONS,
  TIMEOUT_ACTIONS,
} from "../../../domain/sandbox.ts";
import { ErrorObject } from "../../errors.ts";
import { prefixed, repeated } from "../../query.ts";
import { ANY_KEY, Limit, oneOf } from "../../wire-fields.ts";
import { Timestamp, Uuid } from "./common.ts";
import { MEMORY_FORK_FIELDS } from "./forks.ts";
import { Tag } from "./images.ts";
import { COMMAND_FIELDS, InstanceFile, Resources } from "./instances.ts";
import { NetworkRequest } from "./network.ts";
import { ProcessRequest, UserName } from "./processes.ts";
import { flag, Since, waitSeconds } from "./query.ts";

const PORT_MAX = 65_535;

const orNull = <Schema extends TSchema>(schema: Schema, description: string, error?: string) =>
  Type.Union([schema, Type.Null()], { description, ...(error === undefined ? {} : { error }) });

const seconds = (name: string, description: string, fallback?: number) =>
  Type.Integer({
    minimum: 1,
    maximum: SANDBOX_TIMEOUT_SECONDS_MAX,
    description,
    error: `${name} must be an integer from 1 to ${SANDBOX_TIMEOUT_SECONDS_MAX}`,
    ...(fallback === undefined ? {} : { default: fallback }),
  });

export const SandboxName = Type.String({
  pattern: SANDBOX_NAME_PATTERN,
  description: "name, unique among the account's sandboxes that have not ended",
  examples: ["dev"],
  error: "name must be 1 to 40 lower-case letters, digits and hyphens, and begin and end with a letter or digit",
});

export const SandboxState = oneOf(SANDBOX_STATES, {
  description:
    "paused: its files are in its head; failed: its machine ended by itself, and it can be resumed from its head",
  error: `must be one of ${SANDBOX_STATES.join(", ")}`,
});

const OnTimeout = oneOf(TIMEOUT_ACTIONS, {
  description: "what happens at the end of its time",
  error: "on_timeout must be pause or end",
});

const METADATA_RULE = `metadata must be an object of at most ${METADATA_COUNT_MAX} strings`;
const Metadata = Type.Record(
  Type.String({ pattern: `^[\\s\\S]{1,${METADATA_KEY_LENGTH_MAX}}$` }),
  Type.String({
    maxLength: METADATA_VALUE_LENGTH_MAX,
    error: `metadata must have values of at most ${METADATA_VALUE_LENGTH_MAX} characters`,
  }),
  {
    additionalProperties: false,
    maxProperties: METADATA_COUNT_MAX,
    description: `texts of the caller, at most ${METADATA_COUNT_MAX}, by keys of at most ${METADATA_KEY_LENGTH_MAX} characters`,
    error: `${METADATA_RULE}, by keys of 1 to ${METADATA_KEY_LENGTH_MAX} characters`,
  },
);

const PublicPorts = Type.Array(
  Type.Integer({ minimum: 1, maximum: PORT_MAX, error: `must be an integer from 1 to ${PORT_MAX}` }),
  {
    maxItems: PUBLIC_PORTS_COUNT_MAX,
    uniqueItems: true,
    description: "ports that can be reached from outside without a token, if the operator serves them",
    error: `public_ports must be an array of at most ${PUBLIC_PORTS_COUNT_MAX} different ports`,
  },
);

/** The network of a request: null is the same as "none". */
const SandboxNetwork = Type.Union([Type.Literal("none"), NetworkRequest, Type.Null()], {
  description: "what the sandbox may connect to; null: nothing",
  error: 'network must be "none", null, or an object with allow',
});

/** Settings that can be changed while a sandbox lives. */
const SETTINGS = {
  timeout: Type.Optional(
    seconds(
      "timeout",
      "seconds of life from now, and again from each resume, up to limits.sandbox_timeout_max",
      SANDBOX_TIMEOUT_SECONDS_DEFAULT,
    ),
  ),
  idle_timeout: Type.Optional(
    orNull(
      seconds("idle_timeout", "in seconds"),
      "it pauses when nothing used it for so many seconds; null: it does not",
      `idle_timeout must be null, or an integer from 1 to ${SANDBOX_TIMEOUT_SECONDS_MAX}`,
    ),
  ),
  on_timeout: Type.Optional({ ...OnTimeout, default: "pause" }),
  auto_resume: Type.Optional(
    Type.Boolean({
      default: true,
      description: "whether a request resumes it when it is paused",
      error: "auto_resume must be a boolean",
    }),
  ),
  pause_memory: Type.Optional(
    Type.Boolean({
      default: false,
      description: "keep the memory when it pauses at the end of its time, or because it is idle",
      error: "pause_memory must be a boolean",
    }),
  ),
  metadata: Type.Optional(Metadata),
  name: Type.Optional(SandboxName),
  network: Type.Optional(SandboxNetwork),
  public_ports: Type.Optional(PublicPorts),
};

export const SandboxRequest = Type.Object({
  image: Type.String({
    description: "image UUID, or tag:<tag_name>",
    examples: ["tag:busybox"],
    error: "image must be an image UUID or tag:<name>",
  }),
  ...SETTINGS,
  env: COMMAND_FIELDS.env,
  cwd: Type.Optional(
    Type.String({ description: "working directory of its processes, absolute", error: "cwd must be a string" }),
  ),
  user: Type.Optional(UserName),
  resources: Type.Optional(Resources),
  files: Type.Optional(
    Type.Record(ANY_KEY, InstanceFile, {
      description: "files to place at its start, by absolute path",
      error: "files must be an object of {uuid, mode} by absolute path",
    }),
  ),
  start: Type.Optional(ProcessRequest),
  boot: Type.Optional({
    ...Type.Omit(ProcessRequest, ["timeout"]),
    description: "a process that each of its machines begins with, also after a resume",
  }),
});
export type SandboxRequest = Static<typeof SandboxRequest>;

/** New settings; those that are absent stay. */
export const SandboxPatch = Type.Object(SETTINGS);
export type SandboxPatch = Static<typeof SandboxPatch>;

/** A sandbox on the wire. */
export const Sandbox = Type.Object({
  uuid: Uuid,
  name: Type.String(),
  image: orNull(Uuid, "the image where it began; null when it has ended and the image was deleted"),
  head: orNull(Uuid, "the image of its last saved state; null when it has ended and the image was deleted"),
  state: SandboxState,
  parent: Type.Optional(
    Type.String({ format: "uuid", description: "the sandbox that it was forked from; absent when it was not forked" }),
  ),
  forked_at_event: Type.Optional(
    Type.Integer({ description: "id of the last event of the parent before the fork; absent without its memory" }),
  ),
  instance: orNull(Uuid, "the operation of its machine; null while it has none"),
  memory: Type.Optional(
    Type.Object(
      {
        created_at: Timestamp,
        size_bytes: Type.Integer({ description: "space that it takes on the disk" }),
        problem: Type.Optional(Type.String({ description: "why it cannot be resumed; absent: no reason is known" })),
      },
      { description: "its kept memory, with which its processes continue; absent: a resume starts it from its files" },
    ),
  ),
  created_at: Timestamp,
  state_changed_at: Timestamp,
  ended_at: Type.Optional(Timestamp),
  ends_at: orNull(Timestamp, "end of its time; null while it does not live"),
  idle_timeout: orNull(Type.Integer(), "in seconds; null: it does not pause when it is idle"),
  on_timeout: OnTimeout,
  auto_resume: Type.Boolean({ description: "whether a request resumes it when it is paused" }),
  pause_memory: Type.Boolean({ description: "whether it keeps its memory when it pauses by itself" }),
  env_names: Type.Array(Type.String(), { description: "names of the variables of its processes" }),
  cwd: orNull(Type.String(), "working directory of its processes; null: that of the user, or /root"),
  user: orNull(Type.String(), "user of its processes; null: root"),
  network: orNull(NetworkRequest, "what it may connect to; null: nothing"),
  resources: Type.Object({
    vcpus: Type.Integer(),
    memory_bytes: Type.Integer(),
    disk_bytes: Type.Integer(),
  }),
  metadata: Type.Record(Type.String(), Type.String()),
  public_ports: Type.Array(Type.Integer()),
  error: Type.Optional(ErrorObject),
  urls: Type.Optional(
    Type.Object(
      { pattern: Type.String({ description: "address of a port, with {port} in its place" }) },
      { description: "absent when the operator serves no ports" },
    ),
  ),
});
export type Sandbox = Static<typeof Sandbox>;

/** A saved state of a sandbox. */
export const SavedState = Type.Object({
  seq: Type.Integer({ minimum: 0, description: "its number, in the order in which the states were saved" }),
  image: Uuid,
  parent: orNull(Type.Integer(), "number of the state before it; null for the first one"),
  reason: oneOf(SAVE_REASONS, { description: "keep: saved before a rollback or the end" }),
  tags: Type.Array(Type.String(), { description: "tags of the image; a state with a tag is never removed by itself" }),
  created_at: Timestamp,
  is_head: Type.Boolean({ description: "whether the sandbox stands on it" }),
  ref: orNull(
    Type.String({ examples: ["HEAD~2"] }),
    "its name for a rollback; null when the head does not stand on it",
  ),
});
export type SavedState = Static<typeof SavedState>;

/** The usage of a running sandbox at one moment. */
export const SandboxSample = Type.Object({
  at: Timestamp,
  cpu_percent: Type.Number({ description: "share of one CPU since the sample before; 200 is two CPUs" }),
  memory_bytes: Type.Integer({ description: "memory of the virtual machine, with what caches files of the host" }),
  cache_bytes: Type.Integer({ description: "the part of the memory that caches files of the host" }),
  disk_bytes: Type.Integer({
    description: "space on the host of the changes since the sandbox was started or resumed",
  }),
});
export type SandboxSample = Static<typeof SandboxSample>;

export const RollbackRequest = Type.Object({
  image: Type.Optional(
    Type.String({
      default: "HEAD",
      description: `image UUID, tag:<tag_name>, HEAD, or HEAD~n with n up to ${HEAD_DISTANCE_MAX}`,
      examples: ["HEAD~1"],
      error: "image must be an image UUID, tag:<name>, or HEAD~n",
    }),
  ),
  keep: Type.Optional(
    Type.Boolean({
      default: false,
      description: "save what is given up first, so that it can be rolled back to",
      error: "keep must be a boolean",
    }),
  ),
  tag: Type.Optional(Tag),
});
export type RollbackRequest = Static<typeof RollbackRequest>;

export const ForkRequest = Type.Object({
  count: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: FORK_COUNT_MAX,
      default: 1,
      description: "number of sandboxes",
      error: `count must be an integer from 1 to ${FORK_COUNT_MAX}`,
    }),
  ),
  name: Type.Optional(
    Type.String({
      pattern: SANDBOX_NAME_PATTERN,
      description: "their names are this with -1, -2 and so on; the name of the sandbox by default",
      error: "name must be 1 to 40 lower-case letters, digits and hyphens, and begin and end with a letter or digit",
    }),
  ),
  memory: Type.Optional(
    Type.Boolean({
      default: false,
      description: `copy the processes and the memory of a running sandbox, too; at most ${MEMORY_FORK_COUNT_MAX} sandboxes`,
      error: "memory must be a boolean",
    }),
  ),
  signal: Type.Optional(
    Type.String({
      description: "signal for the processes of each fork, which tells them of it, such as USR1; it needs memory",
      error: "signal must be a string",
    }),
  ),
});
export type ForkRequest = Static<typeof ForkRequest>;

/** The sandboxes of a fork with memory. */
export const MemoryFork = Type.Object({ ...MEMORY_FORK_FIELDS, sandboxes: Type.Array(Sandbox) });

export const PauseRequest = Type.Object({
  memory: Type.Optional(
    Type.Boolean({
      default: false,
      description: "keep the memory, too, so that a resume continues the processes",
      error: "memory must be a boolean",
    }),
  ),
});
export type PauseRequest = Static<typeof PauseRequest>;

export const ResumeRequest = Type.Object({
  memory: Type.Optional(
    Type.Boolean({
      description:
        "true: continue the processes, or fail; false: give up kept memory, and start from the files; absent: continue them when their memory is kept",
      error: "memory must be a boolean",
    }),
  ),
});
export type ResumeRequest = Static<typeof ResumeRequest>;

/** Query of a request that a machine may take a while to fulfil. */
export const SettledQuery = Type.Object({ wait: waitSeconds("a state that does not pass by itself") });

const ORDERS = ["asc", "desc"] as const;

/** Query of the listing. */
export const SandboxesQuery = Type.Object({
  state: Type.Optional(
    repeated("state", SandboxState, {
      maximum: SANDBOX_STATES.length,
      description: "only sandboxes in this state; without it, those that have not ended",
    }),
  ),
  name: Type.Optional(Type.String({ description: "only the sandboxes with this name" })),
  metadata: Type.Optional(
    prefixed("metadata.", Type.String(), {
      maximum: METADATA_COUNT_MAX,
      description: "metadata.KEY=VALUE: only sandboxes with this entry",
      error: METADATA_RULE,
    }),
  ),
  since: Type.Optional(Since),
  order: Type.Optional(
    oneOf(ORDERS, { default: "desc", description: "desc: the newest first", error: "order must be asc or desc" }),
  ),
  limit: Type.Optional(Limit),
  cursor: Type.Optional(
    Type.String({
      pattern: "^[A-Za-z0-9_-]{1,200}$",
      description: "start of the page: X-Next-Cursor of the previous page",
      error: "cursor must be the X-Next-Cursor of a previous page",
    }),
  ),
});

/** Query of the end of a sandbox. */
export const EndQuery = Type.Object({
  keep: Type.Optional(flag("keep", "true: the files of a running sandbox are saved first")),
  tag: Type.Optional({ ...Tag, description: "tag to move to the image of the saved files; it needs keep" }),
  wait: waitSeconds("the end"),
});

/** Header of a page, with the cursor of the next one. */
export const NEXT_CURSOR = { "X-Next-Cursor": "cursor of the next page; absent on the last one" };
