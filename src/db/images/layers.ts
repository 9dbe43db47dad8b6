import { and, eq, getTableColumns, sql } from "drizzle-orm";
import type { AccountId, LayerId } from "../../domain/ids.ts";
import { type Database, isOneOf, statement } from "../database.ts";
import { baseProofs, layers, mergedLayers } from "../schema.ts";

export type LayerRow = typeof layers.$inferSelect;

/**
 * The base layer with this key: manifest digest, platform and recipe of the tools. Another account may have imported it,
 * so the caller must first verify all of the image's content.
 */
export function findBaseLayer(db: Database, baseKey: string): LayerRow | null {
  return db.orm.select().from(layers).where(eq(layers.baseKey, baseKey)).get() ?? null;
}

/** The same, if an import of this account has verified all content before: then the key is enough. */
export function findProvenBase(db: Database, accountId: AccountId, baseKey: string): LayerRow | null {
  const isProved = and(eq(baseProofs.layerId, layers.id), eq(baseProofs.accountId, accountId));
  const query = db.orm.select(getTableColumns(layers)).from(layers).innerJoin(baseProofs, isProved);
  return query.where(eq(layers.baseKey, baseKey)).get() ?? null;
}

/** Limit of cached rows per database; the most recently used are kept. */
const CACHED_ROWS_COUNT_MAX = 20_000;
const cachedRows = new WeakMap<Database, Map<LayerId, LayerRow>>();

/**
 * The layers from the lowest up to `id`; empty when there is no such layer. Rows never change, and a layer is deleted
 * before those below it. So only the existence of `id` is checked in the database; other rows come from a cache.
 */
export function layerChain(db: Database, id: LayerId): LayerRow[] {
  if (!hasLayer(db, id)) return [];
  const cached = cachedRows.get(db) ?? new Map<LayerId, LayerRow>();
  cachedRows.set(db, cached);
  const chain: LayerRow[] = [];
  for (let next: LayerId | null = id; next !== null; ) {
    const row = cached.get(next);
    const rows: readonly LayerRow[] = row === undefined ? readChain(db, next).reverse() : [row];
    chain.push(...rows);
    next = row?.parentId ?? null;
  }
  // Lower layers are part of more chains, so they count as used last.
  for (const row of chain) {
    cached.delete(row.id);
    cached.set(row.id, row);
  }
  for (const oldest of cached.keys()) {
    if (cached.size <= CACHED_ROWS_COUNT_MAX) break;
    cached.delete(oldest);
  }
  return chain.reverse();
}

/** The ids of `layerChain`. */
export function layerIds(db: Database, topId: LayerId): LayerId[] {
  return layerChain(db, topId).map(({ id }) => id);
}

/** The layers of `layerChain` by the time at which they were published; those of a time that several have are left out. */
export function layersByTime(db: Database, topId: LayerId): ReadonlyMap<number, LayerId> {
  const times = Map.groupBy(layerChain(db, topId), ({ createdAt }) => createdAt);
  return new Map(
    [...times].flatMap(([time, [row, other]]) => (row === undefined || other !== undefined ? [] : [[time, row.id]])),
  );
}

const idOfLayer = statement((orm) =>
  orm
    .select({ id: layers.id })
    .from(layers)
    .where(eq(layers.id, sql.placeholder("id")))
    .prepare(),
);

function hasLayer(db: Database, id: LayerId): boolean {
  return db.cached(`layer ${id}`, () => idOfLayer(db).get({ id }) !== undefined);
}

const layersUpTo = statement((orm) =>
  orm
    .select(getTableColumns(layers))
    .from(
      sql`(
        with recursive chain(id, parent_id, depth) as (
          select id, parent_id, 0 from layers where id = ${sql.placeholder("id")}
          union all
          select layers.id, layers.parent_id, chain.depth + 1 from chain join layers on layers.id = chain.parent_id
        )
        select id as chain_id, depth from chain
      )`,
    )
    .innerJoin(layers, eq(layers.id, sql`chain_id`))
    .orderBy(sql`depth desc`)
    .prepare(),
);

/** Reads `layerChain` from the database, lowest first. */
function readChain(db: Database, id: LayerId): LayerRow[] {
  return layersUpTo(db).all({ id });
}

/** The subset of `ids` that have a row, as a layer or as a merged layer. Files of all others are garbage. */
export function existingLayers(db: Database, ids: readonly LayerId[]): Set<LayerId> {
  const own = db.orm.select({ id: layers.id }).from(layers).where(isOneOf(layers.id, ids));
  const merged = db.orm.select({ id: mergedLayers.id }).from(mergedLayers).where(isOneOf(mergedLayers.id, ids));
  return new Set([...own.all(), ...merged.all()].map((row) => row.id));
}
