import { Type } from "@sinclair/typebox";
import { ApiError } from "../../domain/errors.ts";
import { isoTime } from "../../domain/ids.ts";
import { isTag, TAG_RULE } from "../../domain/image.ts";
import { KIND_FACTS } from "../../domain/operation.ts";
import type { ImageStep } from "../../service/images.ts";
import { answer, facts } from "./answer.ts";
import { endIfLeft } from "./ending.ts";
import { WAIT_SECONDS_DEFAULT, WAIT_SECONDS_MAX } from "./following.ts";
import { outcome } from "./operation-answer.ts";
import { cutLine, shownBytes, shownName } from "./text.ts";
import { ADDS, DESTROYS, IMAGE, imageId, inputs, integer, optional, READS, type Tool, tool } from "./tool.ts";

export const LIST_COUNT_DEFAULT = 20;
export const LIST_COUNT_MAX = 200;
const COMMAND_CHARACTERS_MAX = 160;

export const TAG = Type.String({ maxLength: 128 });
export const LIMIT = integer(1, LIST_COUNT_MAX, { default: LIST_COUNT_DEFAULT });
export const OFFSET = integer(0, Number.MAX_SAFE_INTEGER, { default: 0 });
export const WAIT_SECONDS = integer(0, WAIT_SECONDS_MAX, { default: WAIT_SECONDS_DEFAULT });

/** @throws ApiError `validation_error` */
export function requireTag(tag: string | undefined): void {
  if (tag !== undefined && !isTag(tag)) throw new ApiError("validation_error", `tag ${TAG_RULE}`, { field: "tag" });
}

/** The last line of a page that may have a next page. */
export function nextPage(count: number, limit: number, offset: number): string[] {
  return count < limit ? [] : [`(there may be more: offset ${offset + count})`];
}

/** A line about a step of a lineage. */
export function stepLine(step: ImageStep): string {
  const { imageId: id, tag, exists, source, command, commandCut, exitCode, sizeBytes, createdAt } = step;
  const origin = source === null ? `ran ${JSON.stringify(commandText(command ?? []))}` : `imported ${source}`;
  const cut = commandCut ? "…" : "";
  const code = exitCode === null ? "" : ` -> exit ${exitCode}`;
  const mark = exists ? (tag === null ? "" : ` [${tag}]`) : " (deleted)";
  return `${id}${mark} ${origin}${cut}${code}, +${shownBytes(sizeBytes)}, ${isoTime(createdAt)}`;
}

/** A command as its caller wrote it: a shell's own arguments are left out. */
function commandText(argv: readonly string[]): string {
  const isShell = argv[0] === "/bin/sh" && argv[1] === "-c";
  return shownName(cutLine((isShell ? argv.slice(2) : argv).join(" "), COMMAND_CHARACTERS_MAX));
}

/** Names the field as this tool does. @throws always */
function aboutReference(error: unknown): never {
  if (!(error instanceof ApiError && error.code === "validation_error")) throw error;
  throw new ApiError(error.code, error.message.replace(/^registry\b/, "reference"), error.details, { cause: error });
}

export const IMAGE_TOOLS: readonly Tool[] = [
  tool({
    name: "import_image",
    description: "Import an image from a container registry, e.g. registry.example:5000/debian:12 (with its host).",
    input: inputs({
      reference: Type.String({ maxLength: 1000 }),
      tag: optional(TAG),
      wait_seconds: optional(WAIT_SECONDS),
    }),
    annotations: { destructiveHint: false, openWorldHint: true },
    scope: KIND_FACTS.image_import.scope,
    async run({ reference, tag, wait_seconds: wait = WAIT_SECONDS_DEFAULT }, call) {
      requireTag(tag);
      const source = { kind: "registry", reference } as const;
      const id = await call.service.images.import(call.principal, { source, tag }).catch(aboutReference);
      using _ending = endIfLeft(call, id);
      return await outcome(call, id, { waitSeconds: wait, bytesMax: 0 });
    },
  }),
  tool({
    name: "list_images",
    description: "List images, the newest first; one with several tags has a line for each.",
    input: inputs({
      tag_prefix: optional(Type.String({ maxLength: 128 })),
      tagged: optional(Type.Boolean({ description: "only images with (true) or without (false) a tag" })),
      limit: optional(LIMIT),
      offset: optional(OFFSET),
    }),
    annotations: READS,
    scope: "images:read",
    async run(
      { tag_prefix: tagPrefix, tagged, limit = LIST_COUNT_DEFAULT, offset = 0 },
      { service, principal, signal },
    ) {
      const query = { perTag: true, tagPrefix, tagged, limit, offset, signal } as const;
      const images = await service.images.list(principal, query);
      const lines = images.map(({ id, tag, createdAt }) => `${id} ${tag ?? "-"} ${isoTime(createdAt)}`);
      if (lines.length === 0) return answer("no images here; import_image imports one");
      return answer("uuid tag created", ...lines, ...nextPage(lines.length, limit, offset));
    },
  }),
  tool({
    name: "image_history",
    description: "How an image was made: its ancestors, or with children=true the images made from it.",
    input: inputs({
      image: IMAGE,
      children: optional(Type.Boolean({ default: false })),
      limit: optional(LIMIT),
      offset: optional(OFFSET),
    }),
    annotations: READS,
    scope: "images:read",
    async run({ image, children = false, limit = LIST_COUNT_DEFAULT, offset = 0 }, call) {
      const { service, principal } = call;
      const id = imageId(call, image);
      const page = { limit, offset, signal: call.signal };
      const steps = children
        ? await service.images.children(principal, id, { ...page, recursive: true })
        : await service.images.lineage(principal, id, page);
      if (steps.length === 0) return answer(offset > 0 ? "no more" : "no image was made from it");
      const order = children ? "images made from it, parents before children:" : "from the image to its origin:";
      return answer(order, ...steps.map(stepLine), ...nextPage(steps.length, limit, offset));
    },
  }),
  tool({
    name: "tag_image",
    description: "Move a tag to an image, whose other tags stay.",
    input: inputs({ image: IMAGE, tag: TAG }),
    annotations: { ...ADDS, idempotentHint: true },
    scope: "images:tag",
    async run({ image, tag }, call) {
      requireTag(tag);
      const id = imageId(call, image);
      call.service.images.addTag(call.principal, id, tag);
      return facts(`${tag} is image ${id} now`, { image: id, tag });
    },
  }),
  tool({
    name: "delete_image",
    description: "Delete an image for good. Images made from it stay.",
    input: inputs({ image: IMAGE }),
    annotations: DESTROYS,
    scope: "images:delete",
    async run({ image }, call) {
      const id = imageId(call, image);
      await call.service.images.delete(call.principal, id);
      return facts(`image ${id} is deleted`, { image: id });
    },
  }),
];
