import { Empty } from "../parts/empty.tsx";
import { Age } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { LabelMark } from "../parts/status-mark.tsx";
import type { EventFeed } from "../run/event-feed-reader.ts";
import { EventList } from "../run/events.tsx";
import { STATE_LABELS } from "./model/states.ts";
import { type Chapter, storyOf } from "./model/story.ts";

/** The states of a sandbox in the order in which they began, newest first, and its other events. */
export function Story({ feed }: { readonly feed: EventFeed }) {
  const story = storyOf(feed.events);
  return (
    <section class="stack gap-4 shrink" aria-label="Events">
      {feed.problem === undefined ? null : <ProblemNote problem={feed.problem} title="The events could not be read" />}
      {story.length === 0 ? (
        <Empty title="Nothing has happened yet" text="Changes of the state appear here as they happen." />
      ) : (
        <ol class="image-steps stack image-history" aria-label="Story">
          {story.map((chapter, index) => (
            <Step key={chapter.id} chapter={chapter} isLatest={index === 0} />
          ))}
        </ol>
      )}
      {feed.events.length === 0 ? null : (
        <details class="run-group">
          <summary>All events</summary>
          <EventList feed={feed} />
        </details>
      )}
    </section>
  );
}

function Step({ chapter, isLatest }: { readonly chapter: Chapter; readonly isLatest: boolean }) {
  const { state, text, detail, time } = chapter;
  return (
    <li class={isLatest ? "image-step relative image-step-shown" : "image-step relative"}>
      <p class="row wrap gap-1-3">
        {state === null ? null : <LabelMark label={STATE_LABELS[state]} />}
        <span>
          {text}
          {detail === "" ? null : <GuestText text={detail} />}
        </span>
        <Age at={time} class="muted small" />
      </p>
    </li>
  );
}
