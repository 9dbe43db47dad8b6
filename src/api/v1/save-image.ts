import { Type } from "@sinclair/typebox";
import type { ImageId } from "../../domain/ids.ts";
import type { Reply } from "../reply.ts";
import { type Route, route } from "../route.ts";
import { directStream } from "../stream.ts";
import type { Surface } from "./surface.ts";

const Archive = Type.String({ format: "binary", description: "bytes of the archive" });

/** Takes an image out of the service, so that it travels without a registry. */
export function saveImageRoute(surface: Surface): Route {
  return route({
    method: "GET",
    path: "/images/:uuid/save",
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
      const id = params["uuid"] as ImageId;
      const { chunks, held } = surface.service.images.save(principal, id, request.signal);
      return {
        status: 200,
        headers: {
          "content-type": "application/x-tar",
          "content-disposition": `attachment; filename="${id}.tar"`,
          "cache-control": "no-store",
        },
        body: directStream(chunks, held),
      };
    },
  });
}
