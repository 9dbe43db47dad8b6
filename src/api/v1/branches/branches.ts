import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import type { ImageId } from "../../../domain/ids.ts";
import { allows } from "../../../domain/scope.ts";
import { BRANCHES_COUNT_MAX } from "../../../domain/tree/listing.ts";
import type { BranchParts } from "../../../service/branches/branches.ts";
import { prefersJson } from "../../accept.ts";
import { JSON_TYPE, NDJSON_TYPE, respond } from "../../reply.ts";
import { about, checked } from "../../route.ts";
import { streamed } from "../../stream/text.ts";
import { BranchRow } from "../schema/branches.ts";
import { BranchesQuery } from "../schema/query.ts";
import type { Surface } from "../surface.ts";
import { imageRow, operationRow } from "./rows.ts";

const BRANCHES = {
  query: checked(BranchesQuery),
  ...about({
    id: "listBranches",
    tag: "Images",
    summary: "Read the branches: the operations that have not ended, and then the images, parents first",
    responses: {
      200: {
        description:
          "an object in each line, sent as it is read; with Accept: application/json an array of these objects. " +
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
