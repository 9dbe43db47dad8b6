import { Elysia } from "elysia";
import { given } from "../../../domain/given.ts";
import type { ImageId } from "../../../domain/ids.ts";
import { type ByteString, byteStringToBytes, parseGuestPath } from "../../../domain/tree/guest-path.ts";
import { LIMIT_DEFAULT } from "../../../domain/tree/listing.ts";
import type { BlamedEntry, PathStep } from "../../../service/branches/path-history.ts";
import { about, checked, jsonSpec } from "../../route.ts";
import { pathFields, stepOf } from "../image-wire.ts";
import { Blame, type BlameItem, BlameQuery, PathLog, type PathLogItem, PathLogQuery } from "../schema/path-history.ts";
import type { Surface } from "../surface.ts";
import { listingItem, TYPE_NAMES } from "./listing-format.ts";

const LOG = {
  query: checked(PathLogQuery),
  ...about({
    id: "pathLog",
    tag: "Inspection",
    summary: "List the steps of an image's lineage that changed a path, or anything below it, the newest first",
    responses: { 200: jsonSpec("a page of changes, each with the step that made it", PathLog) },
    errors: ["not_found", "invalid_path", "too_many_requests"],
  }),
};

const BLAME = {
  query: checked(BlameQuery),
  ...about({
    id: "blamePath",
    tag: "Inspection",
    summary: "Name the step of an image's lineage that changed a file, or each entry of a directory, last",
    responses: { 200: jsonSpec("the entries, and the steps that changed them last", Blame) },
    errors: ["not_found", "invalid_path", "too_many_requests"],
  }),
};

export function pathHistoryRoutes({ access, service: { branches } }: Surface) {
  return new Elysia({ prefix: "/:uuid" })
    .use(access)
    .get(
      "/log",
      async ({
        request,
        principal,
        params,
        query: { path, limit = LIMIT_DEFAULT, cursor = "0" },
      }): Promise<PathLog> => {
        const id = params.uuid as ImageId;
        const page = { id, path: parseGuestPath(path), limit, from: Number(cursor), signal: request.signal };
        const log = await branches.pathLog(principal, page);
        const next = log.next === null ? {} : { next: String(log.next) };
        return { uuid: id, ...pathFields(log.path), items: log.items.map(logItem), ...next };
      },
      { reads: "images:read", ...LOG },
    )
    .get(
      "/blame",
      async ({ request, principal, params, query: { path, limit = LIMIT_DEFAULT, cursor } }): Promise<Blame> => {
        const id = params.uuid as ImageId;
        const after = cursor === undefined ? null : (Buffer.from(cursor, "base64url").toString("latin1") as ByteString);
        const page = { id, path: parseGuestPath(path), limit, after, signal: request.signal };
        const blame = await branches.blame(principal, page);
        return {
          uuid: id,
          ...pathFields(blame.path),
          type: TYPE_NAMES[blame.type],
          items: blame.items.map(blameItem),
          steps: blame.steps.map(stepOf),
          ...(blame.next === null ? {} : { next: byteStringToBytes(blame.next).toString("base64url") }),
        };
      },
      { reads: "images:read", ...BLAME },
    );
}

function logItem({ step, change: { kind, isBelow, now, before }, unknownCount }: PathStep): PathLogItem {
  const type = (now ?? before)?.entry.type ?? "f";
  const item = now === null ? null : listingItem(now.entry);
  return {
    change: kind,
    ...(isBelow ? { below: true } : {}),
    type: TYPE_NAMES[type],
    ...(item === null ? {} : { size_bytes: item.size, mode: item.mode, modified_at: item.modified_at }),
    ...(before === null || before.entry.type === type ? {} : { previous_type: TYPE_NAMES[before.entry.type] }),
    ...(before === null
      ? {}
      : { previous_size_bytes: before.entry.size, previous_mode: listingItem(before.entry).mode }),
    ...(unknownCount === 0 ? {} : { unknown_steps: unknownCount }),
    step: stepOf(step),
  };
}

function blameItem({ entry, last }: BlamedEntry): BlameItem {
  const { name, name_base64, type, size, mode, modified_at } = listingItem(entry);
  return {
    name,
    ...given({ name_base64 }),
    type,
    size_bytes: size,
    mode,
    modified_at,
    ...(last === null ? {} : { image: last.imageId, change: last.change.kind }),
    ...(last?.change.isBelow === true ? { below: true } : {}),
    ...(last === null || last.unknownCount === 0 ? {} : { unknown_steps: last.unknownCount }),
  };
}
