import { type Static, Type } from "@sinclair/typebox";
import { SHA256_PATTERN } from "../../../domain/file.ts";
import { UUID_PATTERN } from "../../../domain/ids.ts";
import { TIME_BOUND_FORMS } from "../../../domain/text/time-bound.ts";
import {
  GREP_CASES,
  GREP_CONTEXT_COUNT_MAX,
  GREP_FILE_MATCHES_COUNT_MAX,
  GREP_GLOBS_COUNT_MAX,
  GREP_PATHS_COUNT_MAX,
  GREP_PATTERNS_COUNT_MAX,
} from "../../../domain/tree/grep.ts";
import type { ByteString } from "../../../domain/tree/guest-path.ts";
import { BRANCHES_COUNT_MAX } from "../../../domain/tree/listing.ts";
import { BYTES_KEYWORD, repeated } from "../../query.ts";
import { Limit, Offset, OfProcess, oneOf, SinceEvent } from "../../wire-fields.ts";
import { OperationKindSchema, OperationStatusSchema } from "./operations.ts";

/** Longest time that a long poll may wait, in `seconds`. */
const WAIT_SECONDS_MAX = 60;

/** Largest `limit` of a page of events. */
const EVENTS_LIMIT_MAX = 100_000;

const since = (ofWhat: string) =>
  Type.String({
    description: `lower bound of the ${ofWhat}, inclusive: ${TIME_BOUND_FORMS}`,
    examples: ["2h", "2026-11-20T10:30:00Z"],
  });
const until = (ofWhat: string) =>
  Type.String({
    description: `upper bound of the ${ofWhat}, inclusive: ${TIME_BOUND_FORMS}`,
    examples: ["15m", "2026-11-20T10:30:00+02:00"],
  });
export const Since = since("creation time");
const Until = until("creation time");

export const flag = (name: string, description: string) =>
  Type.Boolean({ description, error: `${name} must be true or false` });

const ImageTag = Type.String({ minLength: 1, description: "tag of the image", error: "tag must be a tag name" });

/** Query of the image listing. */
export const ImagesQuery = Type.Object({
  limit: Type.Optional(Limit),
  offset: Type.Optional(Offset),
  tagged: Type.Optional(flag("tagged", "true: only tagged images; false: only untagged ones")),
  tag: Type.Optional(Type.String({ description: "only images whose tag begins with this" })),
  since: Type.Optional(Since),
  until: Type.Optional(Until),
});
export type ImagesQuery = Static<typeof ImagesQuery>;

/** Query of the branches. */
export const BranchesQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: BRANCHES_COUNT_MAX,
      default: BRANCHES_COUNT_MAX,
      description: "number of images, the newest",
      error: `limit must be an integer from 1 to ${BRANCHES_COUNT_MAX}`,
    }),
  ),
  before: Type.Optional(
    Type.String({
      pattern: UUID_PATTERN,
      description: "only images that are older than this one",
      error: "before must be the UUID of an image",
    }),
  ),
});

/** Query of the operation listing. */
export const OperationsQuery = Type.Object({
  limit: Type.Optional(Limit),
  offset: Type.Optional(Offset),
  status: Type.Optional(OperationStatusSchema),
  kind: Type.Optional(OperationKindSchema),
  since: Type.Optional(Since),
  until: Type.Optional(Until),
  about: Type.Optional(flag("about", "true: each operation also has a line about its request, and its image")),
});
export type OperationsQuery = Static<typeof OperationsQuery>;

/** The longest wait before an answer. */
export const waitSeconds = (forWhat: string) =>
  Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: WAIT_SECONDS_MAX,
      default: 0,
      description: `seconds to wait for ${forWhat} before the answer`,
      error: `wait must be an integer from 0 to ${WAIT_SECONDS_MAX}`,
    }),
  );

/** Query of one operation. */
export const OperationQuery = Type.Object({ wait: waitSeconds("the end of the operation") });

/** Query of the file look-up; at least one is required. */
export const FilesQuery = Type.Object({
  uuid: Type.Optional(Type.String({ pattern: UUID_PATTERN, description: "file UUID", error: "uuid must be a UUID" })),
  sha256: Type.Optional(
    Type.String({
      pattern: SHA256_PATTERN,
      description: "lower-case hexadecimal SHA-256 of the content",
      error: "sha256 must be 64 lower-case hexadecimal digits",
    }),
  ),
});

/** Query of the live statistics. */
export const StatsQuery = Type.Object({
  once: Type.Optional(flag("once", "true: one JSON object instead of a stream of events")),
});

/** Query of the samples of a sandbox. */
export const SamplesQuery = Type.Object({
  since: Type.Optional(since("time of the samples")),
  until: Type.Optional(until("time of the samples")),
});

/** Query of the event log. */
export const EventsQuery = Type.Object({
  follow: Type.Optional(flag("follow", "true: the stream lasts until the operation has ended")),
  since: Type.Optional(SinceEvent),
  spid: Type.Optional(OfProcess),
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: EVENTS_LIMIT_MAX,
      description: "largest number of events in an array; all by default",
      error: `limit must be an integer from 1 to ${EVENTS_LIMIT_MAX}`,
    }),
  ),
});

/** Query of the look-up by tag. */
export const InspectByTagQuery = Type.Object({ tag: ImageTag });

/** Longest pattern and glob of a search. */
const GREP_PATTERN_CHARACTERS_MAX = 1000;

/** A path in a query: its bytes, percent-decoded, need not be UTF-8. */
export const Path = (description: string) =>
  Type.Unsafe<ByteString>(
    Type.String({ description, examples: ["/etc/hostname"], [BYTES_KEYWORD]: true, error: "path must be given once" }),
  );

export const ListQuery = Type.Object({
  path: Path("absolute path of the directory"),
  text: Type.Optional(flag("text", "true: plain text in the style of ls")),
});

export const DownloadQuery = Type.Object({
  path: Path("absolute path of the file"),
  text: Type.Optional(flag("text", "true: the content type is text/plain")),
});

export const ExistsQuery = Type.Object({ path: Type.Optional(Path("absolute path to check")) });

/** Query of the search by name. */
export const FindQuery = Type.Object({
  glob: Type.String({
    minLength: 1,
    maxLength: GREP_PATTERN_CHARACTERS_MAX,
    examples: ["*.conf", "etc/**/passwd"],
    description:
      "entries whose name matches; if the glob has a slash, whose path below `path` matches: * ** ? [a-z] {a,b}; " +
      "a leading ! leaves out what matches",
    error: `glob must be given once, with 1 to ${GREP_PATTERN_CHARACTERS_MAX} characters`,
  }),
  path: Type.Optional(Path("absolute path of the directory; / by default")),
  limit: Type.Optional(Limit),
});

export const ArchiveQuery = Type.Object({ path: Path("absolute path of the directory or file") });

/** Lines before or after a matching line. */
const contextCount = (name: string, where: string) =>
  Type.Integer({
    minimum: 0,
    maximum: GREP_CONTEXT_COUNT_MAX,
    default: 0,
    description: `number of lines ${where} each matching line, which are in the answer, too; above 0 it implies details`,
    error: `${name} must be an integer from 0 to ${GREP_CONTEXT_COUNT_MAX}`,
  });

export const GrepQuery = Type.Object({
  pattern: repeated(
    "pattern",
    Type.String({
      minLength: 1,
      maxLength: GREP_PATTERN_CHARACTERS_MAX,
      examples: ["(?i)error|warning"],
      error: `pattern must be a regular expression of 1 to ${GREP_PATTERN_CHARACTERS_MAX} characters`,
    }),
    {
      maximum: GREP_PATTERNS_COUNT_MAX,
      description:
        "regular expression in the syntax of RE2; (?i) at its beginning ignores case; a line must match one of several",
    },
  ),
  path: Type.Optional(
    repeated("path", Path("absolute path"), {
      maximum: GREP_PATHS_COUNT_MAX,
      description: "absolute path of a directory or file; / by default; several are searched one after the other",
    }),
  ),
  glob: Type.Optional(
    repeated(
      "glob",
      Type.String({
        minLength: 1,
        maxLength: GREP_PATTERN_CHARACTERS_MAX,
        examples: ["*.log", "!node_modules"],
        error: `glob must be 1 to ${GREP_PATTERN_CHARACTERS_MAX} characters`,
      }),
      {
        maximum: GREP_GLOBS_COUNT_MAX,
        description:
          "only files whose name matches; if the glob has a slash, whose path below `path` matches: * ** ? [a-z] {a,b}; " +
          "a leading ! leaves out files, and directories with all that is in them; the last one that matches decides",
      },
    ),
  ),
  limit: Type.Optional(Limit),
  max_count: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: GREP_FILE_MATCHES_COUNT_MAX,
      description:
        "number of matching lines of each file; further ones are left out, which `truncated` does not report",
      error: `max_count must be an integer from 1 to ${GREP_FILE_MATCHES_COUNT_MAX}`,
    }),
  ),
  case: Type.Optional(
    oneOf(GREP_CASES, {
      default: "sensitive",
      description: "smart: case is ignored unless a pattern has an upper-case letter",
      error: `case must be one of ${GREP_CASES.join(", ")}`,
    }),
  ),
  before: Type.Optional(contextCount("before", "before")),
  after: Type.Optional(contextCount("after", "after")),
  details: Type.Optional(
    flag("details", "true: each line also has its type, its offset and length in bytes, and the ranges that match"),
  ),
});

/** Query of a listing without filters. */
export const PageQuery = Type.Object({ limit: Type.Optional(Limit), offset: Type.Optional(Offset) });

export const ChildrenQuery = Type.Object({
  limit: Type.Optional(Limit),
  offset: Type.Optional(Offset),
  recursive: Type.Optional(flag("recursive", "true: also the descendants of these images")),
});

export const DiffQuery = Type.Object({
  against: Type.Optional(
    Type.String({
      pattern: UUID_PATTERN,
      description: "image to compare with; the parent by default",
      error: "against must be an image UUID",
    }),
  ),
  limit: Type.Optional(Limit),
  cursor: Type.Optional(
    Type.String({
      pattern: "^[A-Za-z0-9_-]{1,87400}$",
      description: "start of the page: `next` of the previous page",
      error: "cursor must be the `next` of a previous page",
    }),
  ),
  about: Type.Optional(
    flag("about", "true: each item also has mode, owner, modification time and target of a symlink, on both sides"),
  ),
});

/** Query of the processes of an instance. */
export const ProcessesQuery = Type.Object({ limit: Type.Optional(Limit), offset: Type.Optional(Offset) });

/** Query of a streamed standard input. */
export const StdinQuery = Type.Object({
  close: Type.Optional(flag("close", "true: end the input after the body")),
});

/** Query of an attachment. */
export const AttachQuery = Type.Object({
  since: Type.Optional(SinceEvent),
  lossless: Type.Optional(flag("lossless", "true: the process waits for this client, which gets all of its output")),
  positions: Type.Optional(flag("positions", "true: channel 3 carries the id of the last event whose output was sent")),
});
