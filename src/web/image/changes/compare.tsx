import { useMemo } from "preact/hooks";
import type { DiffItem } from "../../../client/types.ts";
import { Link, navigate } from "../../browser/router.ts";
import { useLoaded } from "../../data/resource.ts";
import { IconButton } from "../../parts/button.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { Segments } from "../../parts/segments.tsx";
import { Skeleton } from "../../parts/skeleton.tsx";
import { bytesText, countText, timeText } from "../../text/format.ts";
import { ask } from "../../worker/client.ts";
import type { DiffReply } from "../../worker/messages.ts";
import { isText, readPart, TEXT_BYTES_MAX } from "../files/content.ts";
import { modeText } from "../files/mode.ts";
import { type ImageLink, linkTo, linkWith } from "../link.ts";
import { type EncodedPath, ROOT, shownPath, shownText } from "../paths.ts";
import type { ChangeNode } from "./change-tree.ts";
import { CompareLines } from "./compare-lines.tsx";
import { ChangeMark } from "./marks.tsx";

const FORMS = [
  { value: "unified", label: "Unified" },
  { value: "sided", label: "Side by side" },
] as const;

const COMPARE_MS = 10_000;

interface CompareProps {
  readonly link: ImageLink;
  readonly node: ChangeNode;
  /** the other image; undefined: an empty one */
  readonly against: string | undefined;
}

/** One difference: the facts of a path in both images, and a comparison of its text. */
export function Compare({ link, node, against }: CompareProps) {
  const { path, item } = node;
  const close = linkTo(link.image, "changes", ROOT, {
    against: link.fields.get("against"),
    side: link.fields.get("side"),
  });
  return (
    <article class="image-compare stack gap-3 fill shrink" aria-label="Difference">
      <header class="image-compare-head row gap-2">
        <ChangeMark change={item?.change ?? null} />
        <h2>
          <GuestText text={shownPath(path)} isMono isLong />
        </h2>
        <IconButton icon="close" label="Close" onClick={() => navigate(close)} />
      </header>
      {item === null ? <p class="muted">The directory itself is the same in both images.</p> : <Facts item={item} />}
      <p class="image-compare-links flex wrap gap-2-4">
        {item === null || item.change === "removed" ? null : (
          <Link href={linkTo(link.image, "files", path)}>Open in this image</Link>
        )}
        {item === null || item.change === "added" || against === undefined ? null : (
          <Link href={linkTo(against, "files", path)}>Open in the other image</Link>
        )}
      </p>
      {item === null || !hasText(item) ? null : <TextChange link={link} path={path} item={item} against={against} />}
    </article>
  );
}

function hasText({ type, previous_type: previous, change }: DiffItem): boolean {
  return type === "file" || (change === "changed" && previous === "file");
}

/** Both sides of each fact that differs. */
function Facts({ item }: { readonly item: DiffItem }) {
  const { change, type } = item;
  const beforeType = change === "added" ? undefined : (item.previous_type ?? type);
  const afterType = change === "removed" ? undefined : type;
  const mode = (kind: DiffItem["type"] | undefined, octal: string | undefined) =>
    kind === undefined || octal === undefined ? undefined : `${modeText(kind, octal)} ${octal}`;
  const owner = (uid: number | undefined, gid: number | undefined) => (uid === undefined ? undefined : `${uid}:${gid}`);
  const size = (bytes: number | undefined) =>
    bytes === undefined ? undefined : `${bytesText(bytes)} (${countText(bytes)})`;
  const time = (at: string | undefined) => (at === undefined ? undefined : timeText(Date.parse(at)));
  const target = (text: string | undefined, base64: string | undefined) =>
    text === undefined ? undefined : shownText(text, base64);
  const isFile = beforeType === "file" || afterType === "file";
  const facts: readonly (readonly [string, string | undefined, string | undefined])[] = [
    ["Kind", beforeType, afterType],
    ["Mode", mode(beforeType, item.previous_mode), mode(afterType, item.mode)],
    ["Owner", owner(item.previous_uid, item.previous_gid), owner(item.uid, item.gid)],
    ...(isFile ? [["Size", size(item.previous_size_bytes), size(item.size_bytes)] as const] : []),
    [
      "Leads to",
      target(item.previous_symlink_to, item.previous_symlink_to_base64),
      target(item.symlink_to, item.symlink_to_base64),
    ],
    ["Modified", time(item.previous_modified_at), time(item.modified_at)],
  ];
  const present = facts.filter(([, before, after]) => before !== undefined || after !== undefined);
  const visible = change === "changed" ? present.filter(([, before, after]) => before !== after) : present;
  return (
    <dl class="image-sides">
      {visible.map(([name, before, after]) => (
        <div key={name}>
          <dt class="muted">{name}</dt>
          {before === undefined ? null : (
            <dd class={after === undefined ? "" : "removed"}>
              {after === undefined ? null : <span class="visually-hidden">before </span>}
              <GuestText text={before} isLong />
            </dd>
          )}
          {after === undefined ? null : (
            <dd class={before === undefined ? "" : "added"}>
              {before === undefined ? null : <span class="visually-hidden">now </span>}
              <GuestText text={after} isLong />
            </dd>
          )}
        </div>
      ))}
    </dl>
  );
}

/** Both sides, after loading. */
type Compared =
  | { readonly is: "text"; readonly reply: DiffReply; readonly isCut: boolean }
  | { readonly is: "same" }
  | { readonly is: "binary" };

interface TextChangeProps {
  readonly link: ImageLink;
  readonly path: EncodedPath;
  readonly item: DiffItem;
  readonly against: string | undefined;
}

function TextChange({ link, path, item, against }: TextChangeProps) {
  const { value, problem, reload } = useLoaded<Compared>(`${link.image} ${against} ${path}`, async (signal) => {
    const isBefore = item.change !== "added" && (item.previous_type ?? item.type) === "file";
    const isAfter = item.change !== "removed" && item.type === "file";
    const [before, after] = await Promise.all([
      isBefore && against !== undefined ? readSide(against, path, signal) : null,
      isAfter ? readSide(link.image, path, signal) : null,
    ]);
    if ([before, after].some((side) => side !== null && !isText(side.bytes))) return { is: "binary" };
    const isCut = [before, after].some((side) => side !== null && side.size > side.bytes.byteLength);
    const buffers = [before, after].map((side) => side?.bytes.buffer ?? null);
    const [left = null, right = null] = buffers;
    const transfer = buffers.filter((buffer) => buffer !== null);
    const reply = await ask("diff", { before: left, after: right }, { signal, deadlineMs: COMPARE_MS, transfer });
    const isSame = reply.pieces.length === 0 || (reply.pieces.length === 2 && reply.pieces[0] === 0);
    return isSame && !isCut ? { is: "same" } : { is: "text", reply, isCut };
  });
  const isBeside = link.fields.get("side") === "1";
  const reply = value?.is === "text" ? value.reply : null;
  const note = useMemo(() => (value === undefined ? "" : noteOf(value)), [value]);
  if (problem !== undefined)
    return <ProblemNote problem={problem} title="The texts cannot be compared" onRetry={reload} />;
  if (value === undefined) return <Skeleton lines={8} label="Comparing the texts" />;
  return (
    <>
      <div class="image-tools flex wrap items-end gap-2">
        <p class="muted fill">{note}</p>
        {reply === null ? null : (
          <Segments
            label="Show as"
            value={isBeside ? "sided" : "unified"}
            choices={FORMS}
            onValue={(form) =>
              navigate(linkWith({ ...link, path }, { side: form === "sided" ? 1 : null }), { replace: true })
            }
          />
        )}
      </div>
      {reply === null ? null : <CompareLines key={String(isBeside)} reply={reply} isBeside={isBeside} />}
    </>
  );
}

function readSide(image: string, path: EncodedPath, signal: AbortSignal) {
  return readPart({ image, path }, { start: 0, count: TEXT_BYTES_MAX }, signal);
}

function noteOf(value: Compared): string {
  if (value.is === "binary") return "The content is not text. Open both files to see their bytes.";
  if (value.is === "same") return "The content is the same.";
  const cut = value.isCut ? "Only the first MiB of each file is compared. " : "";
  return value.reply.isComplete ? cut : `${cut}The texts differ too much to tell which lines stayed.`;
}
