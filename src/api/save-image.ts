import { Type } from "@sinclair/typebox";
import { layerChain } from "../db/layers.ts";
import { isoTime } from "../domain/ids.ts";
import { sharedLayerHolds } from "../storage/layer-holds.ts";
import { ociArchiveChunks } from "../storage/oci-archive.ts";
import { layerFiles, requireImage } from "./image-access.ts";
import type { Reply } from "./reply.ts";
import { type Route, route } from "./route.ts";
import type { ApiServices } from "./services.ts";
import { directStream } from "./stream.ts";

const Archive = Type.String({ format: "binary", description: "bytes of the archive" });

/** Takes an image out of the service, so that it travels without a registry. */
export function saveImageRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/images/:uuid/save",
    scope: "images:read",
    id: "saveImage",
    tag: "Images",
    summary: "Download an image as an OCI layout in a tar archive, one layer for each of the image's",
    responses: {
      200: {
        description: "the archive; sockets and names that begin with .wh. are left out, which it cannot hold",
        content: { "application/x-tar": Archive },
        headers: { "Content-Disposition": "a name for the archive" },
      },
    },
    errors: ["not_found"],
    handle: ({ request, principal, params }): Reply => {
      const image = requireImage(services, principal, params["uuid"] ?? "");
      const layers = layerChain(services.db, image.layerId);
      const held = sharedLayerHolds.hold(layers.map(({ id }) => id));
      const files = layerFiles(services, layers);
      const archived = { layers: files, name: image.tag, createdAt: isoTime(image.createdAt) };
      const chunks = ociArchiveChunks(archived, request.signal);
      return {
        status: 200,
        headers: {
          "content-type": "application/x-tar",
          "content-disposition": `attachment; filename="${image.id}.tar"`,
          "cache-control": "no-store",
        },
        body: directStream(chunks, held),
      };
    },
  });
}
