/** The mark of Coppice: a stump, and what grows from it. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 24 24" aria-hidden="true">
      <path d="M4 20.5h16" />
      <path d="M12 20.5V12" />
      <path d="M12 15.5c0-3.8-2.2-6-6-6.4.2 4 2.4 6.4 6 6.4Z" />
      <path d="M12 12c0-4.4 2.4-7.4 6.6-8.4.5 4.8-2 8-6.6 8.4Z" />
    </svg>
  );
}
