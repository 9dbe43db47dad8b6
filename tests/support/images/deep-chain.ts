import { linkSync } from "node:fs";
import { openDatabase } from "../../../src/db/database.ts";
import { getImage } from "../../../src/db/images/images.ts";
import { layerChain } from "../../../src/db/images/layers.ts";
import { history, images, layers } from "../../../src/db/schema.ts";
import type { AccountId, ImageId, LayerId, OperationId } from "../../../src/domain/ids.ts";
import { indexPath, layerPath } from "../../../src/storage/layers/layers.ts";
import { dataLayout } from "../../../src/storage/layout.ts";

/**
 * Makes a chain longer by as many layers as that many runs would add, in a data directory that no daemon uses. The last
 * `period` layers of the image are repeated, as if their runs had been repeated. Returns the images, each with one layer more
 * than the one before.
 */
export function deepen(dataDir: string, imageId: string, options: { period: number; count: number }): string[] {
  const layout = dataLayout(dataDir);
  using db = openDatabase(layout.database);
  const top = getImage(db, "tester" as AccountId, imageId as ImageId);
  if (top === null) throw new Error(`no image ${imageId}`);
  const repeated = layerChain(db, top.layerId).slice(-options.period);
  const imageIds: string[] = [];
  db.transaction((tx) => {
    let parent: { readonly layerId: LayerId; readonly imageId: ImageId } = { layerId: top.layerId, imageId: top.id };
    for (let at = 0; at < options.count; at++) {
      const source = repeated[at % repeated.length];
      if (source === undefined) throw new Error("a chain without layers");
      const layerId = Bun.randomUUIDv7() as LayerId;
      const id = Bun.randomUUIDv7() as ImageId;
      linkSync(layerPath(layout, source.id), layerPath(layout, layerId));
      linkSync(indexPath(layout, source.id), indexPath(layout, layerId));
      const { sizeBytes } = source;
      tx.insert(layers)
        .values({ ...source, id: layerId, parentId: parent.layerId, baseKey: null })
        .run();
      tx.insert(images)
        .values({ id, accountId: top.accountId, parentId: parent.imageId, layerId, sizeBytes, createdAt: Date.now() })
        .run();
      const operationId = Bun.randomUUIDv7() as OperationId;
      tx.insert(history)
        .values({ imageId: id, parentId: parent.imageId, operationId, sizeBytes, createdAt: Date.now() })
        .run();
      imageIds.push(id);
      parent = { layerId, imageId: id };
    }
  });
  return imageIds;
}
