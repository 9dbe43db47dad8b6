import { type Static, Type } from "@sinclair/typebox";
import { ENV_COUNT_MAX, FILE_MODE_DEFAULT } from "../../../domain/instance.ts";
import { OUTPUT_BYTES_DEFAULT, OUTPUT_BYTES_MAX } from "../../../domain/output.ts";
import { ANY_KEY, HOSTNAME_PATTERN, OWNER_MAX, oneOf } from "../../wire-fields.ts";
import { orNull, Uuid } from "./common.ts";
import { OptionalTag } from "./images.ts";

/* Clients send null for most fields that they do not set. */

const owner = (name: "uid" | "gid", description: string) =>
  Type.Optional(
    orNull(Type.Integer({ minimum: 0, maximum: OWNER_MAX }), {
      description,
      default: 0,
      error: `${name} must be an integer from 0 to ${OWNER_MAX}`,
    }),
  );

const optionalFlag = (name: string, description: string) =>
  Type.Optional(orNull(Type.Boolean(), { description, default: false, error: `${name} must be a boolean` }));

/** Bytes for a standard input. */
export const StdinPayload = Type.Object({
  value: Type.String({ description: "bytes in the given encoding", error: "value must be a string" }),
  encoding: Type.Optional(
    orNull(oneOf(["ascii", "base64"]), { default: "ascii", error: "encoding must be ascii or base64" }),
  ),
  close: Type.Optional(
    orNull(Type.Boolean(), {
      default: true,
      description: "false: the input stays open after the bytes",
      error: "close must be a boolean",
    }),
  ),
});

/** Fields of all commands: the command of an instance, and additional processes. */
const COMMAND_FIELDS = {
  command: Type.String({
    description: "executable, or a shell expression when shell is true; empty: a shell that reads standard input",
    error: "command must be a string",
  }),
  args: Type.Optional(
    orNull(Type.Array(Type.String()), {
      description: "arguments of the command; with a shell, further words of the expression",
      default: [],
      error: "args must be an array of strings",
    }),
  ),
  shell: optionalFlag("shell", "run the command by $SHELL -c, or /bin/sh -c, with the variables of the image"),
  env: Type.Optional(
    orNull(Type.Record(ANY_KEY, orNull(Type.String(), { error: "env must be an object of strings" })), {
      description: `environment variables, at most ${ENV_COUNT_MAX}; null removes one of the image`,
      error: "env must be an object of strings",
    }),
  ),
  cwd: Type.Optional(
    orNull(Type.String(), {
      default: "",
      description: "working directory, absolute; empty: that of the image, or /",
      error: "cwd must be a string",
    }),
  ),
  uid: owner("uid", "user id of the command"),
  gid: owner("gid", "group id of the command"),
  stdin: Type.Optional(
    orNull(StdinPayload, { description: "standard input", error: "stdin must be an object with value" }),
  ),
  truncate_output_at: Type.Optional(
    orNull(Type.Integer({ minimum: 0, maximum: OUTPUT_BYTES_MAX }), {
      default: OUTPUT_BYTES_DEFAULT,
      description: "largest number of bytes to keep of each stream",
      error: `truncate_output_at must be an integer from 0 to ${OUTPUT_BYTES_MAX}`,
    }),
  ),
};

/** An additional process of an instance. */
export const ExecSpec = Type.Object(COMMAND_FIELDS);
export type ExecSpec = Static<typeof ExecSpec>;

const FileSpec = Type.Object(
  {
    uuid: Uuid,
    mode: Type.Optional(
      orNull(Type.Union([Type.String({ pattern: "^(?:0o)?[0-7]{1,7}$" }), Type.Integer({ minimum: 0 })]), {
        default: FILE_MODE_DEFAULT,
        description: "octal permissions, of which the last twelve bits count",
        error: 'mode must be octal digits, such as "0644"',
      }),
    ),
    uid: owner("uid", "user id of the owner"),
    gid: owner("gid", "group id of the owner"),
  },
  { error: "a file must be an object with uuid and, optionally, mode, uid and gid" },
);

/** A request for an instance. */
export const InstanceSpawn = Type.Object({
  image: Type.String({
    description: "image UUID, or tag:<name>",
    examples: ["tag:busybox"],
    error: "image must be an image UUID or tag:<name>",
  }),
  ...COMMAND_FIELDS,
  preserve_env: optionalFlag("preserve_env", "store the variables in the image of the result"),
  preserve_cwd: optionalFlag("preserve_cwd", "store the working directory in the image of the result"),
  hostname: Type.Optional(
    orNull(Type.String({ pattern: `^$|${HOSTNAME_PATTERN}` }), {
      default: "linuxkit",
      description: "host name of the instance",
      error: "hostname must be 1 to 64 letters, digits, dots and hyphens, and begin and end with a letter or digit",
    }),
  ),
  disposable: optionalFlag("disposable", "discard the file system after the run"),
  tag: OptionalTag,
  timeout: Type.Optional(
    orNull(Type.Integer({ minimum: 1 }), {
      description: "maximum execution time, in seconds; the operator's limit when absent or above it",
      error: "timeout must be a positive integer",
    }),
  ),
  files: Type.Optional(
    orNull(Type.Record(ANY_KEY, FileSpec), {
      description: "input files, by absolute path",
      error: "files must be an object of {uuid, mode, uid, gid} by absolute path",
    }),
  ),
  resources_limits: Type.Optional(
    orNull(
      Type.Object({
        max_layer_bytes: Type.Optional(
          orNull(Type.Integer({ minimum: 1 }), { error: "max_layer_bytes must be a positive integer" }),
        ),
      }),
      { error: "resources_limits must be an object" },
    ),
  ),
  networking: Type.Optional(
    orNull(
      Type.Object({
        enabled: Type.Optional(orNull(Type.Boolean(), { default: true, error: "enabled must be a boolean" })),
      }),
      { description: "false: no network; otherwise what the operator allows", error: "networking must be an object" },
    ),
  ),
});
export type InstanceSpawn = Static<typeof InstanceSpawn>;
