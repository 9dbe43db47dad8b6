import { Elysia } from "elysia";
import type { ImageId } from "../../../domain/ids.ts";
import { about, jsonSpec } from "../../route.ts";
import { ImageDeletion } from "../schema/branches.ts";
import type { Surface } from "../surface.ts";

const DELETION = {
  ...about({
    id: "previewImageDeletion",
    tag: "Images",
    summary: "Read which space the deletion of an image would free, and what would stay",
    responses: { 200: jsonSpec("what the deletion would do", ImageDeletion) },
    errors: ["not_found", "too_many_requests"],
  }),
};

export function deletionRoutes(surface: Surface) {
  return new Elysia().use(surface.access).get(
    "/images/:uuid/deletion",
    async ({ request, principal, params }) => {
      const id = params.uuid as ImageId;
      const preview = await surface.service.branches.previewDeletion(principal, id, request.signal);
      return {
        uuid: id,
        size_bytes: preview.sizeBytes,
        layers: preview.layerCount,
        children: preview.childCount,
        tags: [...preview.tags],
        in_use: preview.isInUse,
      };
    },
    { reads: "images:read", ...DELETION },
  );
}
