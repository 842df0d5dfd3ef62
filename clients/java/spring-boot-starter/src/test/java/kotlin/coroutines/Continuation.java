package kotlin.coroutines;

/** In place of Kotlin's: the compiler gives one to each function that may suspend. */
public interface Continuation {
    /** {@return what no JSON has to do with} */
    default String getContext() {
        return "";
    }
}
