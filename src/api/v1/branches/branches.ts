import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { type ImageId, isoTime } from "../../../domain/ids.ts";
import { BRANCHES_COUNT_MAX } from "../../../domain/listing.ts";
import { allows } from "../../../domain/scope.ts";
import type {
  BranchParts,
  BranchImage as StoredImage,
  BranchOperation as StoredOperation,
} from "../../../service/branches/branches.ts";
import { prefersJson } from "../../accept.ts";
import { JSON_TYPE, respond } from "../../reply.ts";
import { about, checked } from "../../route.ts";
import { streamed } from "../../stream.ts";
import { imageOf } from "../image-wire.ts";
import { type BranchImage, type BranchOperation, BranchRow } from "../schema/branches.ts";
import { BranchesQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";

const NDJSON_TYPE = "application/x-ndjson";

const BRANCHES = {
  query: checked(BranchesQuery),
  ...about({
    id: "listBranches",
    tag: "Images",
    summary: "Read the branches: the operations that have not ended, and then the images, parents first",
    responses: {
      200: {
        description:
          "an object in each line, as it is read; with Accept: application/json an array of these objects. " +
          "The last one has the type `end`. Operations are left out if the token lacks operations:read",
        content: { "application/json": Type.Array(BranchRow), [NDJSON_TYPE]: Type.String() },
      },
    },
    errors: ["not_found", "too_many_requests"],
  }),
};

export function branchRoutes(surface: Surface) {
  return new Elysia().use(surface.access).get(
    "/branches",
    async ({ request, principal, query: { limit = BRANCHES_COUNT_MAX, before } }) => {
      const isJson = prefersJson(request.headers.get("accept"));
      const branches = await surface.service.branches.read(principal, {
        limit,
        before: before === undefined ? null : (before.toLowerCase() as ImageId),
        withOperations: allows(principal.grants, "operations:read"),
        signal: request.signal,
      });
      const text = isJson ? arrayText(branches) : linesText(branches);
      return respond(await streamed(isJson ? JSON_TYPE : NDJSON_TYPE, text, branches), request);
    },
    { reads: "images:read", ...BRANCHES },
  );
}

async function* rowsOf({ parts }: BranchParts): AsyncGenerator<readonly BranchRow[], void, undefined> {
  for await (const part of parts) {
    if (part.type === "images") yield part.images.map(imageRow);
    else if (part.type === "operations") yield part.operations.map(operationRow);
    else yield [{ type: "end", older: part.isOlderLeft }];
  }
}

async function* linesText(branches: BranchParts): AsyncGenerator<string, void, undefined> {
  for await (const rows of rowsOf(branches)) yield rows.map((row) => `${JSON.stringify(row)}\n`).join("");
}

async function* arrayText(branches: BranchParts): AsyncGenerator<string, void, undefined> {
  let separator = "[";
  for await (const rows of rowsOf(branches)) {
    yield `${separator}${rows.map((row) => JSON.stringify(row)).join()}`;
    separator = ",";
  }
  yield "]";
}

function imageRow(row: StoredImage): BranchImage {
  const { parentId, skippedCount, exitCode } = row;
  // A checkpoint stores the command of an instance that had not ended, and so no exit code.
  const kind = row.isImport ? "image_import" : exitCode === null && !row.timedOut ? "checkpoint" : "instance";
  return {
    type: "image",
    ...imageOf(row),
    ...(parentId === null ? {} : { parent: parentId }),
    ...(skippedCount === 0 ? {} : { skipped: skippedCount }),
    size_bytes: row.sizeBytes,
    kind,
    operation: row.operationId,
    ...(row.about === null ? {} : { about: row.about }),
    ...(exitCode === null ? {} : { exit_code: exitCode }),
    ...(row.timedOut ? { timed_out: true } : {}),
    ...(row.network ? { network: true } : {}),
  };
}

function operationRow(row: StoredOperation): BranchOperation {
  const { id, kind, status, imageId, startedAt, finishedAt, resultId } = row;
  return {
    ...{ type: "operation", uuid: id, kind, status },
    ...(imageId === null ? {} : { image: imageId }),
    ...(row.about === null ? {} : { about: row.about }),
    created_at: isoTime(row.createdAt),
    ...(startedAt === null ? {} : { started_at: isoTime(startedAt) }),
    ...(finishedAt === null ? {} : { finished_at: isoTime(finishedAt) }),
    ...(resultId === null ? {} : { result: resultId }),
  };
}
