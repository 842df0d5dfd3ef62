// A drawing for each thing.
const draw = (lines) => `<svg viewBox="0 0 120 90" aria-hidden="true">${lines}</svg>`

export const PICTURES = {
  kettle: draw(`<path class="fill" d="M48 46h34l6 26H42z"/><path d="M48 40h34l6 32H42z"/><path d="M54 40c0-8 22-8 22 0"/><path d="M65 30v-4"/>
    <path d="M44 62C26 60 34 34 20 30"/><path d="M84 44c18-6 20 22 4 22"/>`),
  grinder: draw(`<path class="fill" d="M50 48h24v26H50z"/><path d="M48 30h28l-2 44H50z"/><path d="M49 48h26"/><path d="M62 30V20h28"/><circle cx="93" cy="20" r="4"/>`),
  mug: draw(`<path class="fill" d="M44 46h32v24c0 4-3 6-7 6H51c-4 0-7-2-7-6z"/><path d="M44 34h32v36c0 4-3 6-7 6H51c-4 0-7-2-7-6z"/>
    <path d="M76 42c16-2 16 22 0 22"/><path d="M54 26c-4-5 4-7 0-12M66 26c-4-5 4-7 0-12"/>`),
  beans: draw(`<path class="fill" d="M42 40h36v34H42z"/><path d="M42 24h36v50H42z"/><path d="M42 24l4-8h28l4 8"/><ellipse cx="60" cy="52" rx="8" ry="11"/>
    <path d="M60 41c-5 8 5 14 0 22"/>`),
  scale: draw(`<path class="fill" d="M32 62h56v12H32z"/><rect x="32" y="52" width="56" height="22" rx="4"/><path d="M38 52v-6h44v6"/><path d="M52 63h16"/>
    <circle cx="78" cy="63" r="2"/>`),
  filter: draw(`<path class="fill" d="M44 48h32L60 76z"/><path d="M34 24h52L62 76h-4z"/><path d="M40 36h40"/><path d="M60 24v12"/>`),
}
