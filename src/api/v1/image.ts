import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { given } from "../../domain/given.ts";
import type { ImageId } from "../../domain/ids.ts";
import { byteStringToBytes, type GuestPath } from "../../domain/tree/guest-path.ts";
import { type Entry, LIMIT_DEFAULT } from "../../domain/tree/listing.ts";
import type { Difference, ImageDetails as StoredDetails } from "../../service/images.ts";
import { ARCHIVE_CONTENT } from "../content/archive.ts";
import { empty, respond, tar } from "../reply.ts";
import { about, checked, jsonSpec } from "../route.ts";
import { directStream } from "../stream/direct.ts";
import { imageOf, pathFields, stepOf } from "./image-wire.ts";
import { listingItem, TYPE_NAMES } from "./inspection/listing-format.ts";
import { type DiffItem, ImageDetails, ImageDiff, ImageStep } from "./schema/history.ts";
import { ChildrenQuery, DiffQuery, PageQuery } from "./schema/query.ts";
import type { Surface } from "./surface.ts";

const DETAILS = {
  ...about({
    id: "getImage",
    tag: "Images",
    summary: "Read one image, with its parent and size",
    responses: { 200: jsonSpec("the image", ImageDetails) },
    errors: ["not_found"],
  }),
};

const DELETE = {
  ...about({
    id: "deleteImage",
    tag: "Images",
    summary: "Delete an image and its tag; images that were made from it stay usable",
    responses: { 204: { description: "the image is deleted" } },
    errors: ["not_found", "conflict"],
  }),
};

const LINEAGE = {
  query: checked(PageQuery),
  ...about({
    id: "imageLineage",
    tag: "Images",
    summary: "List the lineage of an image: the image itself and its ancestors, up to the import",
    responses: { 200: jsonSpec("a page of steps, the image itself first", Type.Array(ImageStep)) },
    errors: ["not_found", "too_many_requests"],
  }),
};

const CHILDREN = {
  query: checked(ChildrenQuery),
  ...about({
    id: "imageChildren",
    tag: "Images",
    summary: "List the images that were made from an image, the oldest first",
    responses: { 200: jsonSpec("a page of steps; a parent comes before its children", Type.Array(ImageStep)) },
    errors: ["not_found", "too_many_requests"],
  }),
};

const DIFF = {
  query: checked(DiffQuery),
  ...about({
    id: "imageDiff",
    tag: "Images",
    summary: "List the paths at which an image differs from another one, by default from its parent",
    responses: {
      200: jsonSpec(
        "a page of paths, directories before their entries; a page that ran out of time is short or empty, and has a next",
        ImageDiff,
      ),
    },
    errors: ["not_found", "too_many_requests"],
  }),
};

const SAVE_IMAGE = {
  ...about({
    id: "saveImage",
    tag: "Images",
    summary: "Download an image as an OCI layout in a tar archive, with the same layers",
    responses: {
      200: {
        description:
          "the archive; it leaves out sockets and names that begin with .wh., which the format cannot express",
        content: ARCHIVE_CONTENT,
        headers: { "Content-Disposition": "a name for the archive" },
      },
    },
    errors: ["not_found", "too_many_requests"],
  }),
};

export function imageRoutes(surface: Surface) {
  return new Elysia({ prefix: "/images/:uuid" })
    .use(surface.access)
    .get("", ({ principal, params }) => detailsOf(surface.service.images.get(principal, params.uuid as ImageId)), {
      reads: "images:read",
      ...DETAILS,
    })
    .delete(
      "",
      async ({ request, principal, params }) => {
        await surface.service.images.delete(principal, params.uuid as ImageId);
        return respond(empty(204), request);
      },
      { writes: "images:delete", ...DELETE },
    )
    .get(
      "/lineage",
      async ({ request, principal, params, query: { limit = LIMIT_DEFAULT, offset = 0 } }) => {
        const page = { limit, offset, signal: request.signal };
        const steps = await surface.service.images.lineage(principal, params.uuid as ImageId, page);
        return steps.map(stepOf);
      },
      { reads: "images:read", ...LINEAGE },
    )
    .get(
      "/children",
      async ({ request, principal, params, query: { limit = LIMIT_DEFAULT, offset = 0, recursive = false } }) => {
        const page = { limit, offset, recursive, signal: request.signal };
        const steps = await surface.service.images.children(principal, params.uuid as ImageId, page);
        return steps.map(stepOf);
      },
      { reads: "images:read", ...CHILDREN },
    )
    .get(
      "/diff",
      async ({ request, principal, params, query }) => {
        const id = params.uuid as ImageId;
        const { against, differences, next } = await surface.service.images.diff(principal, {
          id,
          against: query.against === undefined ? null : (query.against.toLowerCase() as ImageId),
          after: cursorPath(query.cursor),
          limit: query.limit ?? LIMIT_DEFAULT,
          signal: request.signal,
        });
        return {
          uuid: id,
          ...given({ against }),
          items: differences.map(query.about === true ? diffItemAbout : diffItem),
          ...(next === null ? {} : { next: byteStringToBytes(next).toString("base64url") }),
        };
      },
      { reads: "images:read", ...DIFF },
    )
    .get(
      "/save",
      async ({ request, principal, params }) => {
        const id = params.uuid as ImageId;
        const { chunks, held } = await surface.service.images.save(principal, id, request.signal);
        return respond(tar(id, directStream(chunks, held)), request);
      },
      { reads: "images:read", ...SAVE_IMAGE },
    );
}

function cursorPath(cursor: string | undefined): GuestPath | null {
  return cursor === undefined ? null : (Buffer.from(cursor, "base64url").toString("latin1") as GuestPath);
}

function diffItem({ path, change, now, before }: Difference): DiffItem {
  const type = (now ?? before)?.entry.type ?? "f";
  return {
    ...pathFields(path),
    change,
    type: TYPE_NAMES[type],
    ...(now === null ? {} : { size_bytes: now.entry.size }),
    ...(before === null || before.entry.type === type ? {} : { previous_type: TYPE_NAMES[before.entry.type] }),
    ...(before === null ? {} : { previous_size_bytes: before.entry.size }),
  };
}

/** A difference with the further fields that a listing has for each side. */
function diffItemAbout(difference: Difference): DiffItem {
  const { now, before } = difference;
  return {
    ...diffItem(difference),
    ...(now === null ? {} : sideOf("", now.entry)),
    ...(before === null ? {} : sideOf("previous_", before.entry)),
  };
}

/** The fields of one side of a difference that a listing has, too. */
function sideOf(prefix: "" | "previous_", entry: Entry): Partial<DiffItem> {
  const { mode, uid, gid, modified_at, symlink_to, symlink_to_base64 } = listingItem(entry);
  const fields = given({ mode, uid, gid, modified_at, symlink_to, symlink_to_base64 });
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [prefix + name, value]));
}

function detailsOf(image: StoredDetails): ImageDetails {
  const { parentId, sizeBytes, digest } = image;
  return {
    ...imageOf(image),
    ...given({ parent: parentId }),
    size_bytes: sizeBytes,
    ...given({ digest }),
  };
}
