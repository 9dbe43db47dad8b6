import { useLayoutEffect, useMemo, useState } from "preact/hooks";
import { Link, navigate } from "../../browser/router.ts";
import { useLoaded } from "../../data/resource.ts";
import { Button } from "../../parts/button.tsx";
import { Empty } from "../../parts/empty.tsx";
import { Bytes } from "../../parts/figure.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { Icon } from "../../parts/icon.tsx";
import { VirtualRows } from "../../parts/lists/virtual-rows.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { Splitter } from "../../parts/splitter.tsx";
import { countText } from "../../text/format.ts";
import { useFocusKept } from "../files/focus.ts";
import { type ImageLink, linkTo } from "../link.ts";
import { type EncodedPath, parentOf, ROOT, shownName, stepsTo } from "../paths.ts";
import { useRowPixels } from "../use-pixels.ts";
import { BasePicker } from "./base-picker.tsx";
import { type ChangeNode, type ChangeRow, firstOpen, rowsOf } from "./change-tree.ts";
import { type Changes, ITEMS_STEP, readChanges } from "./changes-loader.ts";
import { Compare } from "./compare.tsx";
import { ChangeMark, Counts } from "./marks.tsx";

/** Largest number of initially open rows. */
const FIRST_ROWS = 60;

/** Changes since the parent, or since any other image. */
export function ChangesView({ link }: { readonly link: ImageLink }) {
  const { image, fields } = link;
  const against = fields.get("against");
  const [itemsMax, setItemsMax] = useState(ITEMS_STEP);
  const { value, problem, isLoading, reload } = useLoaded<Changes>(`${image} ${against} ${itemsMax}`, (signal, tell) =>
    readChanges({ image, against, itemsMax }, signal, tell),
  );
  // Opening or closing a difference creates another list.
  const section = useFocusKept(link.path, value !== undefined);
  return (
    <section ref={section} class="image-changes stack gap-3 shrink" aria-label="Changes">
      <BasePicker link={link} />
      {problem === undefined ? null : (
        <ProblemNote problem={problem} title="The images cannot be compared" onRetry={reload} />
      )}
      {value === undefined && isLoading ? <Skeleton lines={8} label="Comparing" /> : null}
      {value === undefined ? null : (
        <Comparison link={link} changes={value} onMore={() => setItemsMax((max) => max + ITEMS_STEP)} />
      )}
    </section>
  );
}

interface ComparisonProps {
  readonly link: ImageLink;
  readonly changes: Changes;
  readonly onMore: () => void;
}

function Comparison({ link, changes, onMore }: ComparisonProps) {
  const { root, isComplete, hasMore, count } = changes;
  if (isComplete && count === 0) {
    return (
      <Empty title="No differences" text="Both images have the same files, with the same content, modes and owners." />
    );
  }
  const selected = link.path === ROOT ? null : nodeAt(root, link.path);
  const tree = <Tree link={link} changes={changes} />;
  return (
    <>
      <p class="row wrap gap-2 small tabular muted" role="status">
        <Counts counts={root.counts} isLong />
        {isComplete ? null : " so far"}
        {isComplete && hasMore ? (
          <>
            {" "}
            · there are more{" "}
            <Button isSmall onClick={onMore}>
              Read {countText(ITEMS_STEP)} more
            </Button>
          </>
        ) : null}
      </p>
      {selected === null ? (
        tree
      ) : (
        <Splitter
          label="Differences and the one that is shown"
          name="changes"
          initial={32}
          first={tree}
          second={
            <Compare
              key={`${selected.path} ${changes.against}`}
              link={link}
              node={selected}
              against={changes.against}
            />
          }
        />
      )}
    </>
  );
}

function nodeAt(root: ChangeNode, path: EncodedPath): ChangeNode | null {
  let node: ChangeNode | undefined = root;
  for (const step of stepsTo(path).slice(1)) node = node?.children.find((child) => child.path === step);
  return node ?? null;
}

/** The row of a path, or of its deepest visible directory. */
function nearestRow(rows: readonly ChangeRow[], path: EncodedPath): number {
  const index = rows.findIndex(({ node }) => node.path === path);
  return index >= 0 || path === ROOT ? Math.max(0, index) : nearestRow(rows, parentOf(path));
}

function Tree({ link, changes: { root } }: { readonly link: ImageLink; readonly changes: Changes }) {
  // Directories that the user opened or closed.
  const [toggled, setToggled] = useState<ReadonlySet<EncodedPath>>(new Set());
  const first = useMemo(() => {
    const open = firstOpen(root, FIRST_ROWS);
    for (const step of stepsTo(link.path).slice(0, -1)) open.add(step);
    return open;
  }, [root]);
  const isOpen = (path: EncodedPath) => first.has(path) !== toggled.has(path);
  const rows = useMemo(() => rowsOf(root, isOpen), [root, toggled]);
  const rowHeight = useRowPixels();
  // The active row is stored by its path, because rows above it appear and disappear.
  const [chosen, setChosen] = useState(link.path);
  useLayoutEffect(() => setChosen(link.path), [link.path]);
  const active = useMemo(() => nearestRow(rows, chosen), [rows, chosen]);
  const setActive = (index: number) => setChosen(rows[index]?.node.path ?? ROOT);
  const toggle = (path: EncodedPath) => {
    const next = new Set(toggled);
    if (!next.delete(path)) next.add(path);
    setToggled(next);
  };
  const open = (index: number) => {
    const node = rows[index]?.node;
    if (node === undefined || node.path === ROOT) return;
    if (node.item === null) toggle(node.path);
    else
      navigate(
        linkTo(link.image, "changes", node.path, {
          against: link.fields.get("against"),
          side: link.fields.get("side"),
        }),
      );
  };
  const onKey = (event: KeyboardEvent, index: number) => {
    const row = rows[index];
    const step = row === undefined ? null : keyStep(event.key, rows, index, isOpen(row.node.path));
    if (row === undefined || step === null) return;
    event.preventDefault();
    if (step === "toggle") toggle(row.node.path);
    else setActive(step);
  };
  return (
    <VirtualRows
      label="Differences"
      rowHeight={rowHeight}
      class="image-change-tree"
      count={rows.length}
      active={active}
      onActive={setActive}
      onOpen={open}
      onKey={onKey}
      rowKey={(index) => rows[index]?.node.path ?? index}
      rowClass={(index) => (rows[index]?.node.path === link.path ? "image-change-shown" : undefined)}
      cells={(index) => changeCells(link, rows[index], isOpen, toggle)}
    />
  );
}

/** True for directories with differences below them; those below the root are always open. */
function isFoldable({ path, children }: ChangeNode): boolean {
  return children.length > 0 && path !== ROOT;
}

/** Handles an arrow key in the tree: opens or closes the directory, or moves to another row. */
function keyStep(key: string, rows: readonly ChangeRow[], index: number, isOpen: boolean): "toggle" | number | null {
  const row = rows[index];
  const isFolder = row !== undefined && isFoldable(row.node);
  if (key === "ArrowRight" && isFolder) return isOpen ? Math.min(index + 1, rows.length - 1) : "toggle";
  if (key !== "ArrowLeft") return null;
  if (isFolder && isOpen) return "toggle";
  const above = rows.slice(0, index).findLastIndex(({ depth }) => depth < (row?.depth ?? 0));
  return above === -1 ? null : above;
}

function changeCells(
  link: ImageLink,
  row: ChangeRow | undefined,
  isOpen: (path: EncodedPath) => boolean,
  toggle: (path: EncodedPath) => void,
) {
  if (row === undefined) return [];
  const { node, depth, above } = row;
  const { item, path, counts } = node;
  const isFolder = isFoldable(node);
  const name = (
    <GuestText text={[...above.map((folder) => shownName(folder.path)), shownName(path)].join("/")} hasTitle />
  );
  return [
    <span key="name" class="image-change row gap-2 shrink" style={{ "--depth": depth }}>
      {isFolder ? (
        <button
          type="button"
          class="image-fold rigid muted"
          tabIndex={-1}
          aria-expanded={isOpen(path)}
          aria-label={isOpen(path) ? "Fold the directory" : "Unfold the directory"}
          onClick={() => toggle(path)}
        >
          <Icon name={isOpen(path) ? "down" : "right"} />
        </button>
      ) : (
        <span class="image-fold rigid muted" />
      )}
      <ChangeMark change={item?.change ?? null} />
      <Icon name={isFolder || item?.type === "directory" ? "folder" : item?.type === "symlink" ? "link" : "file"} />
      {item === null || path === ROOT ? (
        name
      ) : (
        <Link
          tabIndex={-1}
          class={`image-change-${item.change}`}
          href={linkTo(link.image, "changes", path, {
            against: link.fields.get("against"),
            side: link.fields.get("side"),
          })}
        >
          {name}
        </Link>
      )}
    </span>,
    isFolder ? <Counts key="counts" counts={counts} /> : <SizeChange key="size" node={node} />,
  ];
}

function SizeChange({ node: { item } }: { readonly node: ChangeNode }) {
  if (item === null || (item.type !== "file" && item.previous_type !== "file" && item.change !== "removed"))
    return null;
  const { size_bytes: now, previous_size_bytes: before } = item;
  if (now === undefined || before === undefined) return <Bytes value={now ?? before} />;
  return now === before ? <Bytes value={now} /> : <Bytes value={now - before} isSigned />;
}
